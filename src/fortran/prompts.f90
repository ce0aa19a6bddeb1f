! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: prompts and the prefix index of pools. Hashes hold the bits of uint64_t. Use module pagoda.
module pagoda_prompts
  use, intrinsic :: iso_c_binding
  use pagoda_base
  implicit none
  private

  !> pagoda_prompt. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_prompt
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: token_ids = c_null_ptr
    type(c_ptr) :: page_hashes = c_null_ptr
    integer(c_int32_t) :: num_tokens = 0
    integer(c_int32_t) :: num_page_hashes = 0
    integer(c_int64_t) :: salt = 0
  end type

  !> pagoda_prefix_stats. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_prefix_stats
    integer(c_size_t) :: struct_size = 0
    integer(c_int64_t) :: prompts = 0
    integer(c_int64_t) :: hit_tokens = 0
    integer(c_int64_t) :: miss_tokens = 0
    integer(c_int64_t) :: hit_pages = 0
    integer(c_int64_t) :: miss_pages = 0
    integer(c_int64_t) :: saved_bytes = 0
    integer(c_int64_t) :: evicted_pages = 0
    integer(c_int32_t) :: indexed_pages = 0
    integer(c_int32_t) :: reserved = 0
    real(c_double) :: hit_rate = 0
  end type

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_prompt, init_prefix_stats
  end interface

  interface
    function pagoda_pool_match(pool, prompt, num_tokens) bind(C, name="pagoda_pool_match") result(status)
      import :: c_int32_t, c_ptr, pagoda_prompt
      type(c_ptr), value :: pool
      type(pagoda_prompt), intent(in) :: prompt
      integer(c_int32_t), intent(inout) :: num_tokens
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_admit_prompt(exec, pool, prompt, k, v, slot) &
        bind(C, name="pagoda_pool_admit_prompt") result(status)
      import :: c_int32_t, c_ptr, pagoda_prompt, pagoda_tensor
      type(c_ptr), value :: exec, pool
      type(pagoda_prompt), intent(in) :: prompt
      type(pagoda_tensor), intent(in) :: k, v
      integer(c_int32_t), intent(inout) :: slot
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_admit_matched(exec, pool, prompt, slot) &
        bind(C, name="pagoda_pool_admit_matched") result(status)
      import :: c_int32_t, c_ptr, pagoda_prompt
      type(c_ptr), value :: exec, pool
      type(pagoda_prompt), intent(in) :: prompt
      integer(c_int32_t), intent(inout) :: slot
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_can_admit_prompt(pool, prompt, can_admit) &
        bind(C, name="pagoda_pool_can_admit_prompt") result(status)
      import :: c_int32_t, c_ptr, pagoda_prompt
      type(c_ptr), value :: pool
      type(pagoda_prompt), intent(in) :: prompt
      integer(c_int32_t), intent(inout) :: can_admit
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_name_tokens(pool, slot, num_tokens, token_ids) &
        bind(C, name="pagoda_pool_name_tokens") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot, num_tokens
      integer(c_int32_t), intent(in) :: token_ids(*)
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_name_pages(pool, slot, num_pages, page_hashes) &
        bind(C, name="pagoda_pool_name_pages") result(status)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot, num_pages
      integer(c_int64_t), intent(in) :: page_hashes(*)
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_named_tokens(pool, slot, num_tokens) bind(C, name="pagoda_pool_named_tokens") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot
      integer(c_int32_t), intent(inout) :: num_tokens
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_is_indexed(pool, page, indexed) bind(C, name="pagoda_pool_is_indexed") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: page
      integer(c_int32_t), intent(inout) :: indexed
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_evict(pool, num_pages, evicted) bind(C, name="pagoda_pool_evict") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: num_pages
      integer(c_int32_t), intent(inout) :: evicted
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_get_prefix_stats(pool, stats) bind(C, name="pagoda_pool_get_prefix_stats") result(status)
      import :: c_int32_t, c_ptr, pagoda_prefix_stats
      type(c_ptr), value :: pool
      type(pagoda_prefix_stats), intent(inout) :: stats
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_reset_prefix_stats(pool) bind(C, name="pagoda_pool_reset_prefix_stats") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t) :: status
    end function
  end interface

  public :: pagoda_init, pagoda_pool_match, pagoda_pool_admit_prompt, pagoda_pool_admit_matched
  public :: pagoda_pool_can_admit_prompt, pagoda_pool_name_tokens, pagoda_pool_name_pages
  public :: pagoda_pool_named_tokens, pagoda_pool_is_indexed, pagoda_pool_evict, pagoda_pool_get_prefix_stats
  public :: pagoda_pool_reset_prefix_stats

contains

  subroutine init_prompt(prompt)
    type(pagoda_prompt), intent(out) :: prompt
    prompt%struct_size = c_sizeof(prompt)
  end subroutine

  subroutine init_prefix_stats(stats)
    type(pagoda_prefix_stats), intent(out) :: stats
    stats%struct_size = c_sizeof(stats)
  end subroutine

end module pagoda_prompts
