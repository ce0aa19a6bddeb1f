! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: pools. Use module pagoda.
module pagoda_pools
  use, intrinsic :: iso_c_binding
  use pagoda_base
  use pagoda_decodes, only : pagoda_decode_options
  use pagoda_prefixes, only : pagoda_batch_pages, pagoda_device_rates, pagoda_prefix_report
  implicit none
  private

  !> pagoda_pool_options. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_pool_options
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: layout = 0
    integer(c_int32_t) :: type = 0
    integer(c_int32_t) :: num_kv_heads = 0
    integer(c_int32_t) :: head_dim = 0
    integer(c_int32_t) :: max_seq_len = 0
    integer(c_int32_t) :: max_sequences = 0
    integer(c_int32_t) :: head_dim_v = 0
    integer(c_int32_t) :: page_size = 0
    integer(c_int32_t) :: num_pages = 0
    integer(c_int32_t) :: order = 0
    integer(c_int32_t) :: num_q_heads = 0
    integer(c_int32_t) :: share_prefixes = 0
    type(c_ptr) :: prefix = c_null_ptr
  end type

  !> Values of pagoda_pool_options%share_prefixes.
  integer(c_int32_t), parameter, public :: PAGODA_SHARE_AUTOMATIC = 0, PAGODA_SHARE_NEVER = 1

  !> pagoda_pool_stats. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_pool_stats
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: free_slots = 0
    integer(c_int32_t) :: page_size = 0
    integer(c_int32_t) :: num_pages = 0
    integer(c_int32_t) :: free_pages = 0
    integer(c_int64_t) :: tokens_held = 0
    integer(c_int64_t) :: tokens_stored = 0
    integer(c_int64_t) :: bytes_per_token = 0
    integer(c_int64_t) :: bytes_allocated = 0
    integer(c_int64_t) :: bytes_reserved = 0
    integer(c_int64_t) :: bytes_used = 0
    real(c_double) :: waste = 0
    integer(c_int32_t) :: evictable_pages = 0
    integer(c_int32_t) :: reserved = 0
  end type

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_pool_options, init_pool_stats
  end interface

  interface
    function pagoda_pool_create(exec, options, pool) bind(C, name="pagoda_pool_create") result(status)
      import :: c_int32_t, c_ptr, pagoda_pool_options
      type(c_ptr), value :: exec
      type(pagoda_pool_options), intent(in) :: options
      type(c_ptr), intent(inout) :: pool
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_prepare(exec, pool, options) bind(C, name="pagoda_pool_prepare") result(status)
      import :: c_int32_t, c_ptr, pagoda_decode_options
      type(c_ptr), value :: exec, pool
      type(pagoda_decode_options), intent(in) :: options
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_admit(exec, pool, k, v, slot) bind(C, name="pagoda_pool_admit") result(status)
      import :: c_int32_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec, pool
      type(pagoda_tensor), intent(in) :: k, v
      integer(c_int32_t), intent(inout) :: slot
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_admit_tokens(exec, pool, num_tokens, slot) &
        bind(C, name="pagoda_pool_admit_tokens") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: exec, pool
      integer(c_int32_t), value :: num_tokens
      integer(c_int32_t), intent(inout) :: slot
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_fork(exec, pool, slot, num_tokens, child) bind(C, name="pagoda_pool_fork") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: exec, pool
      integer(c_int32_t), value :: slot, num_tokens
      integer(c_int32_t), intent(inout) :: child
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_release(pool, slot) bind(C, name="pagoda_pool_release") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_append(exec, pool, num_slots, slots, counts, k, v) &
        bind(C, name="pagoda_pool_append") result(status)
      import :: c_int32_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec, pool
      integer(c_int32_t), value :: num_slots
      integer(c_int32_t), intent(in) :: slots(*)
      type(c_ptr), value :: counts
      type(pagoda_tensor), intent(in) :: k, v
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_reserve(exec, pool, num_slots, slots, counts) &
        bind(C, name="pagoda_pool_reserve") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: exec, pool
      integer(c_int32_t), value :: num_slots
      integer(c_int32_t), intent(in) :: slots(*)
      type(c_ptr), value :: counts
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_write(exec, pool, slot_mapping, num_tokens, k, v) &
        bind(C, name="pagoda_pool_write") result(status)
      import :: c_int32_t, c_int64_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec, pool, slot_mapping
      integer(c_int64_t), value :: num_tokens
      type(pagoda_tensor), intent(in) :: k, v
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_decode(exec, pool, num_slots, slots, q, out, lse) &
        bind(C, name="pagoda_pool_decode") result(status)
      import :: c_int32_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec, pool
      integer(c_int32_t), value :: num_slots
      integer(c_int32_t), intent(in) :: slots(*)
      type(pagoda_tensor), intent(in) :: q, out, lse
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_get_prefix_report(pool, report) bind(C, name="pagoda_pool_get_prefix_report") result(status)
      import :: c_int32_t, c_ptr, pagoda_prefix_report
      type(c_ptr), value :: pool
      type(pagoda_prefix_report), intent(inout) :: report
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_get_rates(pool, rates) bind(C, name="pagoda_pool_get_rates") result(status)
      import :: c_int32_t, c_ptr, pagoda_device_rates
      type(c_ptr), value :: pool
      type(pagoda_device_rates), intent(inout) :: rates
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_set_rates(pool, rates) bind(C, name="pagoda_pool_set_rates") result(status)
      import :: c_int32_t, c_ptr, pagoda_device_rates
      type(c_ptr), value :: pool
      type(pagoda_device_rates), intent(in) :: rates
      integer(c_int32_t) :: status
    end function
    ! The tables refer to slots, which must therefore have the target attribute.
    function pagoda_pool_batch_pages(pool, num_slots, slots, query_len, tables) &
        bind(C, name="pagoda_pool_batch_pages") result(status)
      import :: c_int32_t, c_ptr, pagoda_batch_pages
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: num_slots
      integer(c_int32_t), intent(in), target :: slots(*)
      integer(c_int32_t), value :: query_len
      type(pagoda_batch_pages), intent(inout) :: tables
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_kv(exec, pool, num_slots, slots, kv) bind(C, name="pagoda_pool_kv") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache
      type(c_ptr), value :: exec, pool
      integer(c_int32_t), value :: num_slots
      integer(c_int32_t), intent(in) :: slots(*)
      type(pagoda_cache), intent(inout) :: kv
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_holds(pool, slot, holds) bind(C, name="pagoda_pool_holds") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot
      integer(c_int32_t), intent(inout) :: holds
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_seq_len(pool, slot, seq_len) bind(C, name="pagoda_pool_seq_len") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot
      integer(c_int32_t), intent(inout) :: seq_len
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_can_admit(pool, num_tokens, can_admit) bind(C, name="pagoda_pool_can_admit") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: num_tokens
      integer(c_int32_t), intent(inout) :: can_admit
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_block_table(pool, slot, pages, num_pages) &
        bind(C, name="pagoda_pool_block_table") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot
      type(c_ptr), intent(inout) :: pages
      integer(c_int32_t), intent(inout) :: num_pages
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_page_ref_count(pool, page, count) bind(C, name="pagoda_pool_page_ref_count") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: page
      integer(c_int32_t), intent(inout) :: count
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_slot_mapping(pool, slot, first, count, positions) &
        bind(C, name="pagoda_pool_slot_mapping") result(status)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: pool
      integer(c_int32_t), value :: slot, first, count
      integer(c_int64_t), intent(inout) :: positions(*)
      integer(c_int32_t) :: status
    end function
    function pagoda_pool_get_stats(pool, stats) bind(C, name="pagoda_pool_get_stats") result(status)
      import :: c_int32_t, c_ptr, pagoda_pool_stats
      type(c_ptr), value :: pool
      type(pagoda_pool_stats), intent(inout) :: stats
      integer(c_int32_t) :: status
    end function
    subroutine pagoda_pool_destroy(pool) bind(C, name="pagoda_pool_destroy")
      import :: c_ptr
      type(c_ptr), value :: pool
    end subroutine
    function pagoda_pool_get_options(pool, options) bind(C, name="pagoda_pool_get_options") result(status)
      import :: c_int32_t, c_ptr, pagoda_pool_options
      type(c_ptr), value :: pool
      type(pagoda_pool_options), intent(inout) :: options
      integer(c_int32_t) :: status
    end function
  end interface

  interface
    function c_pool_describe(pool) bind(C, name="pagoda_pool_describe") result(text)
      import :: c_ptr
      type(c_ptr), value :: pool
      type(c_ptr) :: text
    end function
  end interface

  public :: pagoda_init, pagoda_pool_create, pagoda_pool_prepare, pagoda_pool_admit, pagoda_pool_admit_tokens
  public :: pagoda_pool_fork, pagoda_pool_release, pagoda_pool_append, pagoda_pool_reserve, pagoda_pool_write
  public :: pagoda_pool_decode, pagoda_pool_kv, pagoda_pool_holds, pagoda_pool_seq_len, pagoda_pool_can_admit
  public :: pagoda_pool_block_table, pagoda_pool_page_ref_count, pagoda_pool_slot_mapping
  public :: pagoda_pool_get_stats, pagoda_pool_destroy, pagoda_pool_get_options, pagoda_pool_describe
  public :: pagoda_pool_get_prefix_report, pagoda_pool_get_rates, pagoda_pool_set_rates, pagoda_pool_batch_pages

contains

  subroutine init_pool_options(options)
    type(pagoda_pool_options), intent(out) :: options
    options%struct_size = c_sizeof(options)
  end subroutine

  subroutine init_pool_stats(stats)
    type(pagoda_pool_stats), intent(out) :: stats
    stats%struct_size = c_sizeof(stats)
  end subroutine

  function pagoda_pool_describe(pool) result(text)
    type(c_ptr), intent(in) :: pool
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_pool_describe(pool))
  end function

end module pagoda_pools
