! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: memory for caches, and arithmetic for their sizes (pagoda_memory.h). Use module pagoda.
module pagoda_memory
  use, intrinsic :: iso_c_binding
  use pagoda_base
  implicit none
  private

  !> pagoda_cache_shape. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_cache_shape
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: layout = 0
    integer(c_int32_t) :: type = 0
    integer(c_int32_t) :: num_pages = 0
    integer(c_int32_t) :: page_size = 0
    integer(c_int32_t) :: num_kv_heads = 0
    integer(c_int32_t) :: head_dim = 0
    integer(c_int32_t) :: head_dim_v = 0
    integer(c_int32_t) :: order = 0
  end type

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_cache_shape
  end interface

  interface
    function pagoda_cache_memory_create(exec, shape, memory, k, v) &
        bind(C, name="pagoda_cache_memory_create") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache_shape, pagoda_tensor
      type(c_ptr), value :: exec
      type(pagoda_cache_shape), intent(in) :: shape
      type(c_ptr), intent(inout) :: memory
      type(pagoda_tensor), intent(inout) :: k, v
      integer(c_int32_t) :: status
    end function
    subroutine pagoda_cache_memory_destroy(memory) bind(C, name="pagoda_cache_memory_destroy")
      import :: c_ptr
      type(c_ptr), value :: memory
    end subroutine
    function pagoda_bytes_per_token(num_kv_heads, head_dim, head_dim_v, type, bytes) &
        bind(C, name="pagoda_bytes_per_token") result(status)
      import :: c_int32_t, c_int64_t
      integer(c_int32_t), value :: num_kv_heads, head_dim, head_dim_v, type
      integer(c_int64_t), intent(inout) :: bytes
      integer(c_int32_t) :: status
    end function
    function pagoda_latent_bytes_per_token(kv_lora_rank, rope_dim, type, bytes) &
        bind(C, name="pagoda_latent_bytes_per_token") result(status)
      import :: c_int32_t, c_int64_t
      integer(c_int32_t), value :: kv_lora_rank, rope_dim, type
      integer(c_int64_t), intent(inout) :: bytes
      integer(c_int32_t) :: status
    end function
    function pagoda_reserved_tokens(seq_len, page_size, tokens) bind(C, name="pagoda_reserved_tokens") result(status)
      import :: c_int32_t, c_int64_t
      integer(c_int64_t), value :: seq_len, page_size
      integer(c_int64_t), intent(inout) :: tokens
      integer(c_int32_t) :: status
    end function
    function pagoda_waste_fraction(seq_len, page_size, fraction) bind(C, name="pagoda_waste_fraction") result(status)
      import :: c_int32_t, c_int64_t, c_double
      integer(c_int64_t), value :: seq_len, page_size
      real(c_double), intent(inout) :: fraction
      integer(c_int32_t) :: status
    end function
    function pagoda_sequences_that_fit(budget_bytes, token_bytes, seq_len, page_size, sequences) &
        bind(C, name="pagoda_sequences_that_fit") result(status)
      import :: c_int32_t, c_int64_t
      integer(c_int64_t), value :: budget_bytes, token_bytes, seq_len, page_size
      integer(c_int64_t), intent(inout) :: sequences
      integer(c_int32_t) :: status
    end function
  end interface

  public :: pagoda_init, pagoda_cache_memory_create, pagoda_cache_memory_destroy, pagoda_bytes_per_token
  public :: pagoda_latent_bytes_per_token, pagoda_reserved_tokens, pagoda_waste_fraction
  public :: pagoda_sequences_that_fit

contains

  subroutine init_cache_shape(shape)
    type(pagoda_cache_shape), intent(out) :: shape
    shape%struct_size = c_sizeof(shape)
  end subroutine

end module pagoda_memory
