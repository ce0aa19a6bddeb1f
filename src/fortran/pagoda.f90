! SPDX-License-Identifier: Apache-2.0
!> The Fortran 2008 interface: the C interface (pagoda.h and pagoda_pool.h, which document every call and field), with
!> derived types for its structs, and tensors made from contiguous arrays.
!>
!>     type(pagoda_cache) :: kv
!>     type(pagoda_decode_options) :: options
!>     type(c_ptr) :: plan = c_null_ptr
!>     call pagoda_init(kv)                                 ! struct_size, and the defaults of the rest
!>     call pagoda_init(options)
!>     kv%k = pagoda_dense(k)       ! real(real32), target :: k(head_dim, kv_heads, tokens, sequences)
!>     ...
!>     if (pagoda_plan_create(c_null_ptr, kv, options, plan) /= PAGODA_SUCCESS) print *, pagoda_last_error()
!>     if (pagoda_decode(c_null_ptr, plan, pagoda_dense(q), kv, pagoda_dense(out), pagoda_no_tensor) /= ...
!>
!> Axes: the first axis of a Fortran array is the fastest, so axes are in the reverse order of those of pagoda.h: keys
!> are (head_dim, kv head, token, page or sequence), queries (head_dim, q head, query token). pagoda_dense reverses the
!> extents. Slots, sequences, pages and tokens count from 0.
!>
!> Pointers: c_null_ptr stands for NULL, and pagoda_no_tensor for an array that is not given. Arrays that a decode uses
!> must have the target attribute, and live until it has run. pagoda_dense also takes a type(c_ptr) to device memory.
module pagoda
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only : int8, int16, real32, real64
  implicit none
  private

  ! Values of pagoda_status, pagoda_space, pagoda_type, pagoda_memory, pagoda_order and pagoda_layout.
  integer(c_int32_t), parameter, public :: PAGODA_SUCCESS = 0, PAGODA_INVALID_ARGUMENT = 1, PAGODA_OUT_OF_MEMORY = 2, &
      PAGODA_OUT_OF_CAPACITY = 3, PAGODA_NOT_INITIALIZED = 4, PAGODA_RUNTIME_ERROR = 5
  integer(c_int32_t), parameter, public :: PAGODA_SPACE_DEFAULT = 0, PAGODA_SPACE_HOST = 1
  integer(c_int32_t), parameter, public :: PAGODA_FP64 = 1, PAGODA_FP32 = 2, PAGODA_FP16 = 3, PAGODA_BF16 = 4, &
      PAGODA_FP8_E4M3 = 5, PAGODA_FP8_E5M2 = 6, PAGODA_INT8 = 7, PAGODA_INT4 = 8, PAGODA_MXFP4 = 9, PAGODA_NVFP4 = 10, &
      PAGODA_E8M0 = 100
  integer(c_int32_t), parameter, public :: PAGODA_MEMORY_UNSPECIFIED = 0, PAGODA_MEMORY_HOST = 1, &
      PAGODA_MEMORY_DEVICE = 2, PAGODA_MEMORY_SHARED = 3
  integer(c_int32_t), parameter, public :: PAGODA_NHD = 0, PAGODA_HND = 1
  integer(c_int32_t), parameter, public :: PAGODA_CONTIGUOUS = 0, PAGODA_PAGED = 1, PAGODA_PAGED_CSR = 2

  !> pagoda_tensor. Axes are in C's order.
  type, bind(C), public :: pagoda_tensor
    type(c_ptr) :: data = c_null_ptr
    integer(c_int64_t) :: extent(4) = 0
    integer(c_int64_t) :: stride(4) = 0
    integer(c_int32_t) :: type = 0
    integer(c_int32_t) :: rank = 0
    integer(c_int32_t) :: memory = 0
    integer(c_int32_t) :: reserved = 0
  end type

  !> pagoda_cache. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_cache
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: layout = 0
    integer(c_int32_t) :: order = 0
    type(pagoda_tensor) :: k, v
    type(c_ptr) :: seq_lens = c_null_ptr
    integer(c_int32_t) :: num_sequences = 0
    integer(c_int32_t) :: batch = 0
    type(c_ptr) :: block_table = c_null_ptr
    integer(c_int64_t) :: max_pages = 0
    integer(c_int64_t) :: block_table_stride(2) = 0
    type(c_ptr) :: page_indptr = c_null_ptr
    type(c_ptr) :: page_indices = c_null_ptr
    integer(c_int64_t) :: num_page_indices = 0
    integer(c_int32_t) :: max_seq_len = 0
    integer(c_int32_t) :: scale_order = 0
    type(c_ptr) :: sequence_ids = c_null_ptr
    type(pagoda_tensor) :: k_scale, v_scale, k_block_scale, v_block_scale
  end type

  !> pagoda_decode_options. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_decode_options
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: num_q_heads = 0
    integer(c_int32_t) :: max_batch = 0
    integer(c_int32_t) :: max_seq_len = 0
    integer(c_int32_t) :: max_query_len = 0
    integer(c_int32_t) :: max_query_tokens = 0
    integer(c_int32_t) :: num_cu_seqlens_q = 0
    type(c_ptr) :: cu_seqlens_q = c_null_ptr
    real(c_double) :: softmax_scale = 0
    real(c_double) :: logit_soft_cap = 0
    integer(c_int32_t) :: not_causal = 0
    integer(c_int32_t) :: window = 0
    integer(c_int32_t) :: num_initial_tokens = 0
    integer(c_int32_t) :: programmatic_launch = 0
    type(c_ptr) :: alibi_slopes = c_null_ptr
    type(c_ptr) :: sinks = c_null_ptr
    type(c_ptr) :: backend = c_null_ptr
    type(c_ptr) :: workspace = c_null_ptr
    integer(c_size_t) :: workspace_bytes = 0
  end type

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
  end type

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
  end type

  !> An array that is not given, such as a log-sum-exp that is not wanted.
  type(pagoda_tensor), parameter, public :: pagoda_no_tensor = pagoda_tensor()

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_cache, init_decode_options, init_pool_options, init_pool_stats
  end interface

  !> The tensor of a contiguous array of rank 1 to 4: pagoda_dense(array) for real32, real64 and int8;
  !> pagoda_dense(array, type) for int16, which holds the bits of PAGODA_FP16 or PAGODA_BF16; and
  !> pagoda_dense(pointer, type, shape) for memory of any kind, with the shape in Fortran's order.
  interface pagoda_dense
    module procedure dense_pointer
    module procedure dense_fp64_1, dense_fp64_2, dense_fp64_3, dense_fp64_4
    module procedure dense_fp32_1, dense_fp32_2, dense_fp32_3, dense_fp32_4
    module procedure dense_int8_1, dense_int8_2, dense_int8_3, dense_int8_4
    module procedure dense_bits16_1, dense_bits16_2, dense_bits16_3, dense_bits16_4
  end interface

  ! The functions of pagoda.h and pagoda_pool.h that return a status, under their own names.
  interface
    function pagoda_initialize() bind(C, name="pagoda_initialize") result(status)
      import :: c_int32_t
      integer(c_int32_t) :: status
    end function
    function pagoda_finalize() bind(C, name="pagoda_finalize") result(status)
      import :: c_int32_t
      integer(c_int32_t) :: status
    end function
    function pagoda_exec_create(space, stream, exec) bind(C, name="pagoda_exec_create") result(status)
      import :: c_int32_t, c_ptr
      integer(c_int32_t), value :: space
      type(c_ptr), value :: stream
      type(c_ptr), intent(inout) :: exec
      integer(c_int32_t) :: status
    end function
    function pagoda_exec_fence(exec) bind(C, name="pagoda_exec_fence") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: exec
      integer(c_int32_t) :: status
    end function
    function pagoda_workspace_bytes(exec, kv, options, bytes) bind(C, name="pagoda_workspace_bytes") result(status)
      import :: c_int32_t, c_ptr, c_size_t, pagoda_cache, pagoda_decode_options
      type(c_ptr), value :: exec
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_decode_options), intent(in) :: options
      integer(c_size_t), intent(inout) :: bytes
      integer(c_int32_t) :: status
    end function
    function pagoda_plan_create(exec, kv, options, plan) bind(C, name="pagoda_plan_create") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_decode_options
      type(c_ptr), value :: exec
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_decode_options), intent(in) :: options
      type(c_ptr), intent(inout) :: plan
      integer(c_int32_t) :: status
    end function
    function pagoda_plan_workspace_bytes(plan, bytes) bind(C, name="pagoda_plan_workspace_bytes") result(status)
      import :: c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: plan
      integer(c_size_t), intent(inout) :: bytes
      integer(c_int32_t) :: status
    end function
    function pagoda_plan_persistent_bytes(plan, bytes) bind(C, name="pagoda_plan_persistent_bytes") result(status)
      import :: c_int32_t, c_ptr, c_size_t
      type(c_ptr), value :: plan
      integer(c_size_t), intent(inout) :: bytes
      integer(c_int32_t) :: status
    end function
    function pagoda_decode(exec, plan, q, kv, out, lse) bind(C, name="pagoda_decode") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_tensor
      type(c_ptr), value :: exec, plan
      type(pagoda_tensor), intent(in) :: q
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_tensor), intent(in) :: out, lse
      integer(c_int32_t) :: status
    end function
    function pagoda_check(exec, kv, plan, q) bind(C, name="pagoda_check") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_tensor
      type(c_ptr), value :: exec
      type(pagoda_cache), intent(in) :: kv
      type(c_ptr), value :: plan
      type(pagoda_tensor), intent(in) :: q
      integer(c_int32_t) :: status
    end function
    function pagoda_merge(exec, outs, lses, out, lse) bind(C, name="pagoda_merge") result(status)
      import :: c_int32_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec
      type(pagoda_tensor), intent(in) :: outs, lses, out, lse
      integer(c_int32_t) :: status
    end function
    function pagoda_merge_pair(exec, out_a, lse_a, out_b, lse_b, out, lse) &
        bind(C, name="pagoda_merge_pair") result(status)
      import :: c_int32_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec
      type(pagoda_tensor), intent(in) :: out_a, lse_a, out_b, lse_b, out, lse
      integer(c_int32_t) :: status
    end function
    function pagoda_write_kv(exec, k_cache, v_cache, order, slot_mapping, num_tokens, k, v) &
        bind(C, name="pagoda_write_kv") result(status)
      import :: c_int32_t, c_int64_t, c_ptr, pagoda_tensor
      type(c_ptr), value :: exec
      type(pagoda_tensor), intent(in) :: k_cache, v_cache
      integer(c_int32_t), value :: order
      type(c_ptr), value :: slot_mapping
      integer(c_int64_t), value :: num_tokens
      type(pagoda_tensor), intent(in) :: k, v
      integer(c_int32_t) :: status
    end function
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
    subroutine pagoda_exec_destroy(exec) bind(C, name="pagoda_exec_destroy")
      import :: c_ptr
      type(c_ptr), value :: exec
    end subroutine
    subroutine pagoda_plan_destroy(plan) bind(C, name="pagoda_plan_destroy")
      import :: c_ptr
      type(c_ptr), value :: plan
    end subroutine
    subroutine pagoda_pool_destroy(pool) bind(C, name="pagoda_pool_destroy")
      import :: c_ptr
      type(c_ptr), value :: pool
    end subroutine
    subroutine pagoda_version(major, minor, patch) bind(C, name="pagoda_version")
      import :: c_int32_t
      integer(c_int32_t), intent(out) :: major, minor, patch
    end subroutine
    function pagoda_type_size(type) bind(C, name="pagoda_type_size") result(bytes)
      import :: c_int32_t, c_size_t
      integer(c_int32_t), value :: type
      integer(c_size_t) :: bytes
    end function
    function pagoda_type_is_enabled(type) bind(C, name="pagoda_type_is_enabled") result(enabled)
      import :: c_int32_t
      integer(c_int32_t), value :: type
      integer(c_int32_t) :: enabled
    end function
  end interface

  ! Those that return text; the procedures below make it Fortran's.
  interface
    function c_status_name(status) bind(C, name="pagoda_status_name") result(text)
      import :: c_int32_t, c_ptr
      integer(c_int32_t), value :: status
      type(c_ptr) :: text
    end function
    function c_last_error() bind(C, name="pagoda_last_error") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_version_string() bind(C, name="pagoda_version_string") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_configuration() bind(C, name="pagoda_configuration") result(text)
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_type_name(type) bind(C, name="pagoda_type_name") result(text)
      import :: c_int32_t, c_ptr
      integer(c_int32_t), value :: type
      type(c_ptr) :: text
    end function
    function c_plan_describe(plan) bind(C, name="pagoda_plan_describe") result(text)
      import :: c_ptr
      type(c_ptr), value :: plan
      type(c_ptr) :: text
    end function
    function c_plan_backend(plan) bind(C, name="pagoda_plan_backend") result(text)
      import :: c_ptr
      type(c_ptr), value :: plan
      type(c_ptr) :: text
    end function
    function c_pool_describe(pool) bind(C, name="pagoda_pool_describe") result(text)
      import :: c_ptr
      type(c_ptr), value :: pool
      type(c_ptr) :: text
    end function
    pure function c_strlen(text) bind(C, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

  public :: pagoda_init, pagoda_dense
  public :: pagoda_initialize, pagoda_finalize, pagoda_exec_create, pagoda_exec_fence, pagoda_workspace_bytes
  public :: pagoda_plan_create, pagoda_plan_workspace_bytes, pagoda_plan_persistent_bytes, pagoda_decode, pagoda_check
  public :: pagoda_merge, pagoda_merge_pair, pagoda_write_kv, pagoda_pool_create, pagoda_pool_prepare
  public :: pagoda_pool_admit, pagoda_pool_admit_tokens, pagoda_pool_fork, pagoda_pool_release, pagoda_pool_append
  public :: pagoda_pool_reserve, pagoda_pool_write, pagoda_pool_decode, pagoda_pool_kv, pagoda_pool_holds
  public :: pagoda_pool_seq_len, pagoda_pool_can_admit, pagoda_pool_block_table, pagoda_pool_page_ref_count, &
      pagoda_pool_slot_mapping
  public :: pagoda_pool_get_stats, pagoda_exec_destroy, pagoda_plan_destroy, pagoda_pool_destroy, pagoda_version
  public :: pagoda_type_size, pagoda_type_is_enabled, pagoda_status_name, pagoda_last_error, pagoda_version_string
  public :: pagoda_configuration
  public :: pagoda_type_name, pagoda_plan_describe, pagoda_plan_backend, pagoda_pool_describe

contains

  subroutine init_cache(kv)
    type(pagoda_cache), intent(out) :: kv
    kv%struct_size = c_sizeof(kv)
  end subroutine

  subroutine init_decode_options(options)
    type(pagoda_decode_options), intent(out) :: options
    options%struct_size = c_sizeof(options)
  end subroutine

  subroutine init_pool_options(options)
    type(pagoda_pool_options), intent(out) :: options
    options%struct_size = c_sizeof(options)
  end subroutine

  subroutine init_pool_stats(stats)
    type(pagoda_pool_stats), intent(out) :: stats
    stats%struct_size = c_sizeof(stats)
  end subroutine

  ! ---- text

  !> A copy of a C string; empty for a null pointer.
  function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: letters(:)
    integer :: i
    text = ""
    if (.not. c_associated(pointer)) return
    call c_f_pointer(pointer, letters, [c_strlen(pointer)])
    text = repeat(" ", size(letters))
    do i = 1, size(letters)
      text(i:i) = letters(i)
    end do
  end function

  function pagoda_status_name(status) result(text)
    integer(c_int32_t), intent(in) :: status
    character(len=:), allocatable :: text
    text = text_of(c_status_name(status))
  end function

  function pagoda_last_error() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_last_error())
  end function

  function pagoda_version_string() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_version_string())
  end function

  function pagoda_configuration() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_configuration())
  end function

  function pagoda_type_name(type) result(text)
    integer(c_int32_t), intent(in) :: type
    character(len=:), allocatable :: text
    text = text_of(c_type_name(type))
  end function

  function pagoda_plan_describe(plan) result(text)
    type(c_ptr), intent(in) :: plan
    character(len=:), allocatable :: text
    text = text_of(c_plan_describe(plan))
  end function

  function pagoda_plan_backend(plan) result(text)
    type(c_ptr), intent(in) :: plan
    character(len=:), allocatable :: text
    text = text_of(c_plan_backend(plan))
  end function

  function pagoda_pool_describe(pool) result(text)
    type(c_ptr), intent(in) :: pool
    character(len=:), allocatable :: text
    text = text_of(c_pool_describe(pool))
  end function

  ! ---- tensors

  !> `extents`: in Fortran's order, at most four.
  function dense_pointer(pointer, type, extents) result(tensor)
    type(c_ptr), intent(in) :: pointer
    integer(c_int32_t), intent(in) :: type
    integer, intent(in) :: extents(:)
    type(pagoda_tensor) :: tensor
    integer :: axis
    tensor%data = pointer
    tensor%type = type
    tensor%rank = size(extents)
    do axis = 1, min(size(extents), 4)
      tensor%extent(axis) = extents(size(extents) + 1 - axis)
    end do
  end function

  function dense_fp64_1(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp64_2(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp64_3(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp64_4(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:,:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp32_1(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_fp32_2(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_fp32_3(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_fp32_4(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:,:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_int8_1(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_int8_2(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_int8_3(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_int8_4(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:,:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_bits16_1(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

  function dense_bits16_2(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:,:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

  function dense_bits16_3(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:,:,:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

  function dense_bits16_4(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:,:,:,:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

end module pagoda
