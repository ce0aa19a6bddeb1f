! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: decodes with shared prefixes (pagoda_prefix.h). Use module pagoda.
module pagoda_prefixes
  use, intrinsic :: iso_c_binding
  use pagoda_base
  use pagoda_decodes, only : pagoda_decode_options
  implicit none
  private

  integer, parameter, public :: PAGODA_MAX_ROW_TILES = 16

  !> pagoda_row_tile. Its defaults are zero.
  type, bind(C), public :: pagoda_row_tile
    integer(c_int32_t) :: rows = 0
    integer(c_int32_t) :: reserved = 0
    real(c_double) :: flops_per_us = 0
    real(c_double) :: item_us = 0
  end type

  !> pagoda_device_rates. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_device_rates
    integer(c_size_t) :: struct_size = 0
    real(c_double) :: memory_bytes_per_us = 0
    real(c_double) :: cache_bytes_per_us = 0
    real(c_double) :: cache_bytes = 0
    real(c_double) :: state_bytes_per_us = 0
    real(c_double) :: item_us = 0
    real(c_double) :: list_us = 0
    integer(c_int32_t) :: teams = 0
    integer(c_int32_t) :: num_tiles = 0
    integer(c_int32_t) :: num_plain_tiles = 0
    integer(c_int32_t) :: reserved = 0
    type(pagoda_row_tile) :: tiles(PAGODA_MAX_ROW_TILES)
    type(pagoda_row_tile) :: plain_tiles(PAGODA_MAX_ROW_TILES)
    real(c_double) :: chain_entry_us = 0
    integer(c_int32_t) :: chain_rows = 0
    integer(c_int32_t) :: chain_tokens = 0
    integer(c_int32_t) :: unsplit_chain_tokens = 0
    integer(c_int32_t) :: reserved2 = 0
  end type

  !> pagoda_prefix_options. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_prefix_options
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: max_entries = 0
    integer(c_int32_t) :: max_states = 0
    integer(c_int32_t) :: state_type = 0
    integer(c_int32_t) :: reserved = 0
    type(c_ptr) :: rates = c_null_ptr
  end type

  !> pagoda_batch_pages. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_batch_pages
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: batch = 0
    integer(c_int32_t) :: num_sequences = 0
    integer(c_int32_t) :: page_size = 0
    integer(c_int32_t) :: query_len = 0
    type(c_ptr) :: seq_lens = c_null_ptr
    type(c_ptr) :: sequence_ids = c_null_ptr
    type(c_ptr) :: cu_seqlens_q = c_null_ptr
    type(c_ptr) :: block_table = c_null_ptr
    integer(c_int64_t) :: max_pages = 0
    integer(c_int64_t) :: block_table_stride(2) = 0
    type(c_ptr) :: page_indptr = c_null_ptr
    type(c_ptr) :: page_indices = c_null_ptr
    integer(c_int64_t) :: num_page_indices = 0
    type(c_ptr) :: page_rows = c_null_ptr
  end type

  !> pagoda_prefix_report. Initialize it with pagoda_init.
  type, bind(C), public :: pagoda_prefix_report
    integer(c_size_t) :: struct_size = 0
    integer(c_int32_t) :: new_plan = 0
    integer(c_int32_t) :: entries = 0
    integer(c_int32_t) :: states = 0
    integer(c_int32_t) :: reserved = 0
    real(c_double) :: planning_us = 0
    real(c_double) :: plain_us = 0
    real(c_double) :: packed_us = 0
    type(c_ptr) :: plain_because = c_null_ptr
  end type

  !> Sets struct_size, and the defaults of all other fields.
  interface pagoda_init
    module procedure init_device_rates, init_prefix_options, init_batch_pages, init_prefix_report
  end interface

  interface
    function pagoda_prefix_create(exec, kv, options, prefix, decoder) &
        bind(C, name="pagoda_prefix_create") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_decode_options, pagoda_prefix_options
      type(c_ptr), value :: exec
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_decode_options), intent(in) :: options
      type(pagoda_prefix_options), intent(in) :: prefix
      type(c_ptr), intent(inout) :: decoder
      integer(c_int32_t) :: status
    end function
    subroutine pagoda_prefix_destroy(decoder) bind(C, name="pagoda_prefix_destroy")
      import :: c_ptr
      type(c_ptr), value :: decoder
    end subroutine
    function pagoda_prefix_plan(decoder, tables, install) bind(C, name="pagoda_prefix_plan") result(status)
      import :: c_int32_t, c_ptr, pagoda_batch_pages
      type(c_ptr), value :: decoder
      type(pagoda_batch_pages), intent(in) :: tables
      integer(c_int32_t), intent(inout) :: install
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_install(exec, decoder, packed) bind(C, name="pagoda_prefix_install") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: exec, decoder
      integer(c_int32_t), intent(inout) :: packed
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_update(exec, decoder, tables, packed) bind(C, name="pagoda_prefix_update") result(status)
      import :: c_int32_t, c_ptr, pagoda_batch_pages
      type(c_ptr), value :: exec, decoder
      type(pagoda_batch_pages), intent(in) :: tables
      integer(c_int32_t), intent(inout) :: packed
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_decode(exec, decoder, q, kv, out, lse) bind(C, name="pagoda_prefix_decode") result(status)
      import :: c_int32_t, c_ptr, pagoda_cache, pagoda_tensor
      type(c_ptr), value :: exec, decoder
      type(pagoda_tensor), intent(in) :: q
      type(pagoda_cache), intent(in) :: kv
      type(pagoda_tensor), intent(in) :: out, lse
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_get_report(decoder, report) bind(C, name="pagoda_prefix_get_report") result(status)
      import :: c_int32_t, c_ptr, pagoda_prefix_report
      type(c_ptr), value :: decoder
      type(pagoda_prefix_report), intent(inout) :: report
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_packed(decoder, packed) bind(C, name="pagoda_prefix_packed") result(status)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: decoder
      integer(c_int32_t), intent(inout) :: packed
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_graph_key(decoder, key) bind(C, name="pagoda_prefix_graph_key") result(status)
      import :: c_int32_t, c_int64_t, c_ptr
      type(c_ptr), value :: decoder
      integer(c_int64_t), intent(inout) :: key
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_get_rates(decoder, rates) bind(C, name="pagoda_prefix_get_rates") result(status)
      import :: c_int32_t, c_ptr, pagoda_device_rates
      type(c_ptr), value :: decoder
      type(pagoda_device_rates), intent(inout) :: rates
      integer(c_int32_t) :: status
    end function
    function pagoda_prefix_set_rates(decoder, rates) bind(C, name="pagoda_prefix_set_rates") result(status)
      import :: c_int32_t, c_ptr, pagoda_device_rates
      type(c_ptr), value :: decoder
      type(pagoda_device_rates), intent(in) :: rates
      integer(c_int32_t) :: status
    end function
  end interface
  interface
    function c_prefix_describe(decoder, lists) bind(C, name="pagoda_prefix_describe") result(text)
      import :: c_int32_t, c_ptr
      type(c_ptr), value :: decoder
      integer(c_int32_t), value :: lists
      type(c_ptr) :: text
    end function
  end interface

  public :: pagoda_init, pagoda_prefix_create, pagoda_prefix_destroy, pagoda_prefix_plan, pagoda_prefix_install
  public :: pagoda_prefix_update, pagoda_prefix_decode, pagoda_prefix_get_report, pagoda_prefix_packed
  public :: pagoda_prefix_graph_key, pagoda_prefix_get_rates, pagoda_prefix_set_rates
  public :: pagoda_prefix_plain_because, pagoda_prefix_describe

contains

  subroutine init_device_rates(rates)
    type(pagoda_device_rates), intent(out) :: rates
    rates%struct_size = c_sizeof(rates)
  end subroutine

  subroutine init_prefix_options(options)
    type(pagoda_prefix_options), intent(out) :: options
    options%struct_size = c_sizeof(options)
  end subroutine

  subroutine init_batch_pages(tables)
    type(pagoda_batch_pages), intent(out) :: tables
    tables%struct_size = c_sizeof(tables)
  end subroutine

  subroutine init_prefix_report(report)
    type(pagoda_prefix_report), intent(out) :: report
    report%struct_size = c_sizeof(report)
  end subroutine

  !> Why decodes are plain; empty: they read a list.
  function pagoda_prefix_plain_because(report) result(text)
    type(pagoda_prefix_report), intent(in) :: report
    character(len=:), allocatable :: text
    text = pagoda_text_of(report%plain_because)
  end function

  function pagoda_prefix_describe(decoder, lists) result(text)
    type(c_ptr), intent(in) :: decoder
    integer(c_int32_t), intent(in) :: lists
    character(len=:), allocatable :: text
    text = pagoda_text_of(c_prefix_describe(decoder, lists))
  end function

end module pagoda_prefixes
