! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: plans, decodes, checks, merges and writes. Use module pagoda.
module pagoda_decodes
  use, intrinsic :: iso_c_binding
  use pagoda_base
  implicit none
  private

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
    integer(c_int32_t) :: max_entries = 0
    integer(c_int32_t) :: max_entry_queries = 0
    integer(c_int32_t) :: max_listed_queries = 0
    integer(c_int32_t) :: exactness = 0
    integer(c_int32_t) :: checked = 0
    integer(c_int32_t) :: entry_chains = 0
  end type

  !> pagoda_table_fault. Initialize it with pagoda_init. pagoda_fault_message returns the message.
  type, bind(C), public :: pagoda_table_fault
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: entry = 0
    integer(c_int32_t) :: sequence = 0
    integer(c_int32_t) :: page = 0
    integer(c_int32_t) :: reserved = 0
    integer(c_int64_t) :: value = 0
    type(c_ptr) :: message = c_null_ptr
  end type

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_decode_options, init_table_fault
  end interface

  interface
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
    subroutine pagoda_plan_destroy(plan) bind(C, name="pagoda_plan_destroy")
      import :: c_ptr
      type(c_ptr), value :: plan
    end subroutine
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
    function pagoda_plan_read_faults(exec, plan, count) bind(C, name="pagoda_plan_read_faults") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: exec, plan
      integer(c_int32_t), intent(inout) :: count
      integer(c_int32_t) :: status
    end function
    function pagoda_plan_get_fault(plan, index, fault) bind(C, name="pagoda_plan_get_fault") result(status)
      import :: c_int32_t, c_ptr, pagoda_table_fault
      type(c_ptr), value :: plan
      integer(c_int32_t), value :: index
      type(pagoda_table_fault), intent(inout) :: fault
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
  end interface

  ! Those that return text; the procedures below make it Fortran's.
  interface
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
  end interface

  public :: pagoda_init, pagoda_workspace_bytes, pagoda_plan_create, pagoda_plan_workspace_bytes
  public :: pagoda_plan_persistent_bytes, pagoda_plan_destroy, pagoda_decode, pagoda_check, pagoda_merge
  public :: pagoda_merge_pair, pagoda_write_kv, pagoda_plan_describe, pagoda_plan_backend
  public :: pagoda_plan_read_faults, pagoda_plan_get_fault, pagoda_fault_message

contains

  subroutine init_decode_options(options)
    type(pagoda_decode_options), intent(out) :: options
    options%struct_size = c_sizeof(options)
  end subroutine

  subroutine init_table_fault(fault)
    type(pagoda_table_fault), intent(out) :: fault
    fault%struct_size = c_sizeof(fault)
  end subroutine

  function pagoda_fault_message(fault) result(text)
    type(pagoda_table_fault), intent(in) :: fault
    character(len=:), allocatable :: text
    text = pagoda_text_of(fault%message)
  end function

  function pagoda_plan_describe(plan) result(text)
    type(c_ptr), intent(in) :: plan
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_plan_describe(plan))
  end function

  function pagoda_plan_backend(plan) result(text)
    type(c_ptr), intent(in) :: plan
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_plan_backend(plan))
  end function

end module pagoda_decodes
