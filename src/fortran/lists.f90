! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: lists of entries (pagoda_lists.h). Indices count from 0. Use module pagoda.
module pagoda_lists
  use, intrinsic :: iso_c_binding
  use pagoda_base
  implicit none
  private

  !> pagoda_entry. Its defaults: all tokens, all kv heads, the result goes to out, no chain. Arrays of it must start
  !> at a multiple of 16 bytes.
  type, bind(C), public :: pagoda_entry
    integer(c_int32_t) :: sequence = 0
    integer(c_int32_t) :: first = 0
    integer(c_int32_t) :: last = -1
    integer(c_int32_t) :: query_begin = 0
    integer(c_int32_t) :: num_queries = 0
    integer(c_int32_t) :: state = -1
    integer(c_int32_t) :: kv_head = -1
    integer(c_int32_t) :: chain = 0
  end type

  !> pagoda_entry_query. Its defaults: the newest token, no mask. Arrays of it must start at a multiple of 16
  !> bytes.
  type, bind(C), public :: pagoda_entry_query
    integer(c_int32_t) :: token = 0
    integer(c_int32_t) :: sequence = 0
    integer(c_int32_t) :: behind = 1
    integer(c_int32_t) :: mask = -1
  end type

  !> pagoda_entries. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_entries
    integer(c_size_t) :: struct_size = 0
    type(c_ptr) :: entries = c_null_ptr
    type(c_ptr) :: queries = c_null_ptr
    type(c_ptr) :: state_begin = c_null_ptr
    type(c_ptr) :: masks = c_null_ptr
    integer(c_int32_t) :: num_entries = 0
    integer(c_int32_t) :: num_queries = 0
    integer(c_int32_t) :: num_state_begin = 0
    integer(c_int32_t) :: num_mask_words = 0
  end type

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_entries
  end interface

  interface
    function pagoda_decode_entries(exec, plan, q, kv, list, out, lse, state_out, state_lse) &
        bind(C, name="pagoda_decode_entries") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_entries, pagoda_tensor
      type(c_ptr), value :: exec, plan
      type(pagoda_tensor), intent(in) :: q
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_entries), intent(in) :: list
      type(pagoda_tensor), intent(in) :: out, lse, state_out, state_lse
      integer(c_int32_t) :: status
    end function
    function pagoda_merge_entries(exec, plan, list, state_out, state_lse, out, lse) &
        bind(C, name="pagoda_merge_entries") result(status)
      import :: c_int32_t, c_ptr, pagoda_entries, pagoda_tensor
      type(c_ptr), value :: exec, plan
      type(pagoda_entries), intent(in) :: list
      type(pagoda_tensor), intent(in) :: state_out, state_lse, out, lse
      integer(c_int32_t) :: status
    end function
    function pagoda_check_entries(exec, plan, q, kv, list, num_states) &
        bind(C, name="pagoda_check_entries") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_entries, pagoda_tensor
      type(c_ptr), value :: exec, plan
      type(pagoda_tensor), intent(in) :: q
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_entries), intent(in) :: list
      integer(c_int32_t), value :: num_states
      integer(c_int32_t) :: status
    end function
  end interface

  public :: pagoda_init, pagoda_decode_entries, pagoda_merge_entries, pagoda_check_entries

contains

  subroutine init_entries(list)
    type(pagoda_entries), intent(out) :: list
    list%struct_size = c_sizeof(list)
  end subroutine

end module pagoda_lists
