! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: constants, tensors, caches, execution instances, texts. Use module pagoda.
module pagoda_base
  use, intrinsic :: iso_c_binding
  implicit none
  private

  ! Values of pagoda_status, pagoda_space, pagoda_type, pagoda_memory, pagoda_order and pagoda_layout.
  integer(c_int32_t), parameter, public :: PAGODA_SUCCESS = 0, PAGODA_INVALID_ARGUMENT = 1, PAGODA_OUT_OF_MEMORY = 2, &
      PAGODA_OUT_OF_CAPACITY = 3, PAGODA_NOT_INITIALIZED = 4, PAGODA_RUNTIME_ERROR = 5
  integer(c_int32_t), parameter, public :: PAGODA_SPACE_DEFAULT = 0, PAGODA_SPACE_HOST = 1
  integer(c_int32_t), parameter, public :: PAGODA_FP64 = 1, PAGODA_FP32 = 2, PAGODA_FP16 = 3, PAGODA_BF16 = 4, &
      PAGODA_FP8_E4M3 = 5, PAGODA_FP8_E5M2 = 6, PAGODA_INT8 = 7, PAGODA_INT4 = 8, PAGODA_MXFP4 = 9, PAGODA_NVFP4 = 10, &
      PAGODA_FP8_DS_MLA = 11, PAGODA_E8M0 = 100
  integer(c_int32_t), parameter, public :: PAGODA_MEMORY_UNSPECIFIED = 0, PAGODA_MEMORY_HOST = 1, &
      PAGODA_MEMORY_DEVICE = 2, PAGODA_MEMORY_SHARED = 3
  integer(c_int32_t), parameter, public :: PAGODA_NHD = 0, PAGODA_HND = 1
  integer(c_int32_t), parameter, public :: PAGODA_FAST = 0, PAGODA_BATCH_INVARIANT = 1, PAGODA_REPRODUCIBLE = 2
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

  !> An array that is not given, such as a log-sum-exp that is not wanted.
  type(pagoda_tensor), parameter, public :: pagoda_no_tensor = pagoda_tensor()

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_cache
  end interface

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
    subroutine pagoda_exec_destroy(exec) bind(C, name="pagoda_exec_destroy")
      import :: c_ptr
      type(c_ptr), value :: exec
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
    pure function c_strlen(text) bind(C, name="strlen") result(length)
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
  end interface

  public :: pagoda_init, pagoda_text_of, pagoda_initialize, pagoda_finalize, pagoda_exec_create
  public :: pagoda_exec_fence, pagoda_exec_destroy, pagoda_version, pagoda_type_size, pagoda_type_is_enabled
  public :: pagoda_status_name, pagoda_last_error, pagoda_version_string, pagoda_configuration, pagoda_type_name

contains

  subroutine init_cache(kv)
    type(pagoda_cache), intent(out) :: kv
    kv%struct_size = c_sizeof(kv)
  end subroutine

  !> A copy of a C string; empty for a null pointer.
  function pagoda_text_of(pointer) result(text)
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
    text = pagoda_text_of(c_status_name(status))
  end function

  function pagoda_last_error() result(text)
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_last_error())
  end function

  function pagoda_version_string() result(text)
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_version_string())
  end function

  function pagoda_configuration() result(text)
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_configuration())
  end function

  function pagoda_type_name(type) result(text)
    integer(c_int32_t), intent(in) :: type
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_type_name(type))
  end function

end module pagoda_base
