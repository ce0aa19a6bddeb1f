! SPDX-License-Identifier: Apache-2.0
! The Fortran interface against attention in real64, from memory of the program, in the host execution space.
program test_fortran
  use, intrinsic :: iso_c_binding
  use, intrinsic :: ieee_arithmetic, only : ieee_is_nan
  use, intrinsic :: iso_fortran_env, only : int8, int16, real32, real64
  use pagoda
  use checks
  implicit none

  integer, parameter :: batch = 3, q_heads = 4, kv_heads = 2, dim = 32, page = 8, pages_each = 3
  integer, parameter :: pages = batch * pages_each
  type(c_ptr) :: host = c_null_ptr
  integer(c_int32_t), target :: seq_lens(batch) = [19, 24, 5], table(pages_each, batch)
  integer :: i

  table = reshape([(pages - i, i=1, pages)], shape(table))
  call test_sizes_and_names()
  call expect(pagoda_initialize(), PAGODA_SUCCESS)
  call expect(pagoda_exec_create(PAGODA_SPACE_HOST, c_null_ptr, host), PAGODA_SUCCESS)
  if (pagoda_type_is_enabled(PAGODA_FP32) /= 0) then
    call test_fp32(PAGODA_CONTIGUOUS)
    call test_fp32(PAGODA_PAGED)
    call test_pool()
    call test_shared_pool()
  end if
  if (pagoda_type_is_enabled(PAGODA_INT8) /= 0) call test_int8()
  if (pagoda_type_is_enabled(PAGODA_FP16) /= 0) call test_fp16()
  call pagoda_exec_destroy(host)
  call expect(pagoda_finalize(), PAGODA_SUCCESS)
  call finish()

contains

  subroutine test_sizes_and_names()
    type(pagoda_tensor) :: tensor
    type(pagoda_cache) :: kv
    type(pagoda_decode_options) :: options
    type(pagoda_pool_options) :: pool_options
    type(pagoda_pool_stats) :: stats
    type(pagoda_table_fault) :: fault
    integer(c_int32_t) :: major, minor, patch
    character(len=32) :: version
    call check(c_sizeof(tensor) == size_in_c(0), "size of pagoda_tensor")
    call check(c_sizeof(kv) == size_in_c(1), "size of pagoda_cache")
    call check(c_sizeof(options) == size_in_c(2), "size of pagoda_decode_options")
    call check(c_sizeof(pool_options) == size_in_c(3), "size of pagoda_pool_options")
    call check(c_sizeof(stats) == size_in_c(4), "size of pagoda_pool_stats")
    call check(c_sizeof(fault) == size_in_c(16), "size of pagoda_table_fault")
    call pagoda_version(major, minor, patch)
    write (version, "(i0, '.', i0, '.', i0)") major, minor, patch
    call check(trim(version) == pagoda_version_string(), "version " // trim(version))
    call check(index(pagoda_configuration(), trim(version)) > 0, "configuration")
    call check(pagoda_type_name(PAGODA_BF16) == "bf16" .and. pagoda_type_size(PAGODA_BF16) == 2, "bf16")
    call expect(pagoda_exec_fence(c_null_ptr), PAGODA_NOT_INITIALIZED, "pagoda_exec_fence: Kokkos is not initialized")
  end subroutine

  !> Lengths and tables of both layouts.
  subroutine describe(kv, layout)
    type(pagoda_cache), intent(out) :: kv
    integer(c_int32_t), intent(in) :: layout
    call pagoda_init(kv)
    kv%layout = layout
    kv%seq_lens = c_loc(seq_lens)
    kv%num_sequences = batch
    if (layout == PAGODA_PAGED) then
      kv%block_table = c_loc(table)
      kv%max_pages = pages_each
    end if
  end subroutine

  !> Makes a plan and decodes.
  subroutine decode(kv, q, out, lse)
    type(pagoda_cache), intent(in) :: kv
    type(pagoda_tensor), intent(in) :: q, out, lse
    type(pagoda_decode_options) :: options
    type(c_ptr) :: plan
    plan = c_null_ptr
    call pagoda_init(options)
    options%num_q_heads = q_heads
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
    call check(pagoda_plan_backend(plan) == "generic", "backend")
    call expect(pagoda_check(host, kv, plan, q), PAGODA_SUCCESS)
    call expect(pagoda_decode(host, plan, q, kv, out, lse), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call expect(pagoda_decode(host, plan, q, kv, pagoda_no_tensor, lse), PAGODA_INVALID_ARGUMENT, "out.")
    call check(index(pagoda_plan_describe(plan), "splits of") == 0, "splits that suit the machine")
    call pagoda_plan_destroy(plan)
    options%exactness = PAGODA_BATCH_INVARIANT
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
    call check(index(pagoda_plan_describe(plan), "splits of") > 0, "fixed splits")
    call expect(pagoda_decode(host, plan, q, kv, out, lse), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call pagoda_plan_destroy(plan)
  end subroutine

  !> Compares with attention over the numbers k and v (dim, kv head, token, sequence).
  subroutine compare(k, v, q, out, lse, tolerance)
    real(real64), intent(in) :: k(:, :, :, :), v(:, :, :, :), q(:, :, :), out(:, :, :), lse(:, :), tolerance
    real(real64) :: total, p, row(dim), sizes(dim)
    integer :: b, h, t, g
    do b = 1, batch
      do h = 1, q_heads
        g = (h - 1) / (q_heads / kv_heads) + 1
        total = 0
        row = 0
        sizes = 0
        do t = 1, seq_lens(b)
          p = exp(dot_product(q(:, h, b), k(:, g, t, b)) / sqrt(real(dim, real64)))
          total = total + p
          row = row + p * v(:, g, t, b)
          sizes = sizes + p * abs(v(:, g, t, b))
        end do
        call check(all(abs(out(:, h, b) * total - row) <= tolerance * sizes), "a row of out")
        call check(abs(lse(h, b) - log(total)) <= tolerance, "a log-sum-exp")
      end do
    end do
  end subroutine

  !> Token t of sequence b (from 1) lies in this page, at this token.
  integer function page_of(t, b)
    integer, intent(in) :: t, b
    page_of = table((t - 1) / page + 1, b) + 1
  end function

  subroutine test_fp32(layout)
    integer(c_int32_t), intent(in) :: layout
    integer, parameter :: capacity = page * pages_each
    real(real32), target :: k(dim, kv_heads, page, pages), v(dim, kv_heads, page, pages)
    real(real32), target :: k_rows(dim, kv_heads, capacity, batch), v_rows(dim, kv_heads, capacity, batch)
    real(real32), target :: q(dim, q_heads, batch), out(dim, q_heads, batch)
    real(real64), target :: lse(q_heads, batch)
    type(pagoda_cache) :: kv
    integer :: b, t
    call random_number(k_rows)
    call random_number(v_rows)
    call random_number(q)
    v_rows = v_rows - 0.5
    call describe(kv, layout)
    if (layout == PAGODA_PAGED) then
      do b = 1, batch
        do t = 1, capacity
          k(:, :, mod(t - 1, page) + 1, page_of(t, b)) = k_rows(:, :, t, b)
          v(:, :, mod(t - 1, page) + 1, page_of(t, b)) = v_rows(:, :, t, b)
        end do
      end do
      kv%k = pagoda_dense(k)
      kv%v = pagoda_dense(v)
    else
      kv%k = pagoda_dense(k_rows)
      kv%v = pagoda_dense(c_loc(v_rows), PAGODA_FP32, shape(v_rows))
    end if
    call decode(kv, pagoda_dense(q), pagoda_dense(out), pagoda_dense(lse))
    call compare(real(k_rows, real64), real(v_rows, real64), real(q, real64), real(out, real64), lse, 1e-5_real64)
    call test_checked(kv, layout, q, out)
  end subroutine

  !> A length, and a page id of a paged cache, that are outside of the cache. Batch entries 1 and 2 are sequences 2 and 1.
  !> out: of a decode without them, in which entry b is sequence b.
  subroutine test_checked(kv, layout, q, out)
    type(pagoda_cache), intent(in) :: kv
    integer(c_int32_t), intent(in) :: layout
    real(real32), intent(in), target :: q(dim, q_heads, batch), out(dim, q_heads, batch)
    real(real32), target :: again(dim, q_heads, batch)
    type(pagoda_decode_options) :: options
    integer(c_int32_t), target :: ids(batch) = [0, 2, 1]
    type(pagoda_cache) :: listed
    type(pagoda_table_fault) :: fault
    type(c_ptr) :: plan
    integer(c_int32_t) :: faults, page_before, length_before
    plan = c_null_ptr
    listed = kv
    listed%sequence_ids = c_loc(ids)
    listed%batch = batch
    page_before = table(3, 2)
    length_before = seq_lens(3)
    call pagoda_init(options)
    call pagoda_init(fault)
    options%num_q_heads = q_heads
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
    call expect(pagoda_plan_read_faults(host, plan, faults), PAGODA_INVALID_ARGUMENT, "checked is false")
    call pagoda_plan_destroy(plan)
    options%checked = 1
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
    table(3, 2) = -5
    seq_lens(3) = 1000
    again = 7
    call expect(pagoda_decode(host, plan, pagoda_dense(q), listed, pagoda_dense(again), pagoda_no_tensor), PAGODA_SUCCESS)
    call expect(pagoda_plan_read_faults(host, plan, faults), PAGODA_SUCCESS)
    call check(faults == merge(2, 1, layout == PAGODA_PAGED), "number of faults")
    call check(all(abs(again(:, :, 1) - out(:, :, 1)) < 1e-6), "a sequence without faults")
    call check(all(ieee_is_nan(again(:, :, 2))), "NaN for a wrong length")
    call expect(pagoda_plan_get_fault(plan, 0, fault), PAGODA_SUCCESS)
    call check(fault%entry == 1 .and. fault%sequence == 2 .and. fault%page == -1 .and. fault%value == 1000, "the length")
    if (layout == PAGODA_PAGED) then
      call check(all(ieee_is_nan(again(:, :, 3))), "NaN for a wrong page id")
      call expect(pagoda_plan_get_fault(plan, 1, fault), PAGODA_SUCCESS)
      call check(fault%entry == 2 .and. fault%sequence == 1 .and. fault%page == 2 .and. fault%value == -5, "the page")
      call check(index(pagoda_fault_message(fault), "page 2 of sequence 1 (batch entry 2) is -5") > 0, "its message")
    else
      call check(.not. any(ieee_is_nan(again(:, :, 3))), "a contiguous cache has no page ids")
    end if
    call expect(pagoda_plan_get_fault(plan, faults, fault), PAGODA_INVALID_ARGUMENT, "index is")
    call pagoda_plan_destroy(plan)
    table(3, 2) = page_before
    seq_lens(3) = length_before
  end subroutine

  !> A contiguous cache with a scale for each token and head.
  subroutine test_int8()
    integer, parameter :: capacity = page * pages_each
    integer(int8), target :: k(dim, kv_heads, capacity, batch), v(dim, kv_heads, capacity, batch)
    real(real32), target :: k_scale(kv_heads, capacity, batch), v_scale(kv_heads, capacity, batch)
    real(real32), target :: q(dim, q_heads, batch), out(dim, q_heads, batch)
    real(real64), target :: lse(q_heads, batch)
    real(real64) :: numbers(dim, kv_heads, capacity, batch), v_numbers(dim, kv_heads, capacity, batch)
    type(pagoda_cache) :: kv
    integer :: d
    call random_number(numbers)
    k = int(200 * numbers - 100, int8)
    call random_number(numbers)
    v = int(200 * numbers - 100, int8)
    call random_number(k_scale)
    call random_number(v_scale)
    call random_number(q)
    k_scale = k_scale / 100
    v_scale = v_scale / 100
    do d = 1, dim
      numbers(d, :, :, :) = k(d, :, :, :) * real(k_scale, real64)
      v_numbers(d, :, :, :) = v(d, :, :, :) * real(v_scale, real64)
    end do
    call describe(kv, PAGODA_CONTIGUOUS)
    kv%k = pagoda_dense(k)
    kv%v = pagoda_dense(v)
    kv%k_scale = pagoda_dense(k_scale)
    kv%v_scale = pagoda_dense(v_scale)
    call decode(kv, pagoda_dense(q), pagoda_dense(out), pagoda_dense(lse))
    call compare(numbers, v_numbers, real(q, real64), real(out, real64), lse, 1e-2_real64)
  end subroutine

  !> Bits of fp16: every value is 1, so every output is.
  subroutine test_fp16()
    integer, parameter :: capacity = page * pages_each
    integer(int16), parameter :: one = 15360
    integer(int16), target :: k(dim, kv_heads, capacity, batch), v(dim, kv_heads, capacity, batch)
    integer(int16), target :: q(dim, q_heads, batch), out(dim, q_heads, batch)
    real(real32), target :: lse(q_heads, batch)
    type(pagoda_cache) :: kv
    integer :: b
    k = 0
    v = one
    q = one
    out = 0
    call describe(kv, PAGODA_CONTIGUOUS)
    kv%k = pagoda_dense(k, PAGODA_FP16)
    kv%v = pagoda_dense(v, PAGODA_FP16)
    call decode(kv, pagoda_dense(q, PAGODA_FP16), pagoda_dense(out, PAGODA_FP16), pagoda_dense(lse))
    call check(all(out == one), "outputs of fp16")
    do b = 1, batch
      call check(all(abs(lse(:, b) - log(real(seq_lens(b)))) < 1e-5), "log-sum-exps of fp16")
    end do
  end subroutine

  !> Two sequences of the same pages: the rates decide whether these are read once.
  subroutine test_shared_pool()
    real(real32), target :: k(dim, kv_heads, 8), v(dim, kv_heads, 8), q(dim, q_heads, 2), out(dim, q_heads, 2)
    type(pagoda_pool_options) :: options
    type(pagoda_prefix_options), target :: prefix
    type(pagoda_prefix_report) :: report
    type(pagoda_device_rates) :: rates
    type(pagoda_batch_pages) :: tables
    type(c_ptr) :: pool
    integer(c_int32_t), target :: slots(2)
    integer :: share
    k = 0
    v = 3
    q = 1
    do share = PAGODA_SHARE_AUTOMATIC, PAGODA_SHARE_NEVER
      pool = c_null_ptr
      call pagoda_init(options)
      call pagoda_init(report)
      call pagoda_init(rates)
      call pagoda_init(tables)
      options%layout = PAGODA_PAGED
      options%type = PAGODA_FP32
      options%num_kv_heads = kv_heads
      options%head_dim = dim
      options%max_seq_len = 16
      options%max_sequences = 2
      options%page_size = 2
      options%num_q_heads = q_heads
      options%share_prefixes = share
      call pagoda_init(prefix)
      prefix%max_states = 8
      prefix%state_type = PAGODA_FP16
      options%prefix = c_loc(prefix)
      call expect(pagoda_pool_create(host, options, pool), PAGODA_SUCCESS)
      call expect(pagoda_pool_admit(host, pool, pagoda_dense(k), pagoda_dense(v), slots(1)), PAGODA_SUCCESS)
      call expect(pagoda_pool_fork(host, pool, slots(1), -1, slots(2)), PAGODA_SUCCESS)
      if (share == PAGODA_SHARE_AUTOMATIC) then
        call expect(pagoda_pool_get_rates(pool, rates), PAGODA_SUCCESS)
        rates%memory_bytes_per_us = 1
        rates%cache_bytes_per_us = 1
        rates%state_bytes_per_us = 1e9
        rates%item_us = 0
        rates%list_us = 0
        call expect(pagoda_pool_set_rates(pool, rates), PAGODA_SUCCESS)
      else
        call expect(pagoda_pool_get_rates(pool, rates), PAGODA_INVALID_ARGUMENT, "share_prefixes is never")
      end if
      out = 7
      call expect(pagoda_pool_decode(host, pool, 2, slots, pagoda_dense(q), pagoda_dense(out), pagoda_no_tensor), &
          PAGODA_SUCCESS)
      call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
      call check(all(abs(out - 3) < 1e-5), "outputs of shared pages")
      call expect(pagoda_pool_get_prefix_report(pool, report), PAGODA_SUCCESS)
      if (share == PAGODA_SHARE_AUTOMATIC) then
        call check(len(pagoda_prefix_plain_because(report)) == 0 .and. report%entries > 0, "a list of shared pages")
      else
        call check(index(pagoda_prefix_plain_because(report), "never") > 0, "no list")
      end if
      call expect(pagoda_pool_batch_pages(pool, 2, slots, 1, tables), PAGODA_SUCCESS)
      call check(tables%batch == 2 .and. tables%page_size == 2 .and. c_associated(tables%page_rows) .and. &
          c_associated(tables%sequence_ids, c_loc(slots)), "tables of the pool")
      call pagoda_pool_destroy(pool)
    end do
  end subroutine

  !> A prompt, a token, a decode: keys are zero, so outputs are the mean of the values.
  subroutine test_pool()
    real(real32), target :: k(dim, kv_heads, 4), v(dim, kv_heads, 4), q(dim, q_heads, 1), out(dim, q_heads, 1)
    type(pagoda_pool_options) :: options
    type(pagoda_pool_stats) :: stats
    type(c_ptr) :: pool
    integer(c_int32_t) :: slots(1), length
    integer :: t
    pool = c_null_ptr
    k = 0
    q = 1
    do t = 1, 4
      v(:, :, t) = t
    end do
    call pagoda_init(options)
    call pagoda_init(stats)
    options%layout = PAGODA_PAGED
    options%type = PAGODA_FP32
    options%num_kv_heads = kv_heads
    options%head_dim = dim
    options%max_seq_len = 8
    options%max_sequences = 1
    options%page_size = 2
    options%num_q_heads = q_heads
    call expect(pagoda_pool_create(host, options, pool), PAGODA_SUCCESS)
    call expect(pagoda_pool_admit(host, pool, pagoda_dense(k), pagoda_dense(v), slots(1)), PAGODA_SUCCESS)
    call expect(pagoda_pool_append(host, pool, 1, slots, c_null_ptr, pagoda_dense(k(:, :, 1:1)), &
        pagoda_dense(v(:, :, 4:4))), PAGODA_SUCCESS)
    call expect(pagoda_pool_decode(host, pool, 1, slots, pagoda_dense(q), pagoda_dense(out), pagoda_no_tensor), &
        PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call check(all(abs(out - 14 / 5.0) < 1e-5), "outputs of the pool")
    call expect(pagoda_pool_seq_len(pool, slots(1), length), PAGODA_SUCCESS)
    call expect(pagoda_pool_get_stats(pool, stats), PAGODA_SUCCESS)
    call check(length == 5 .and. stats%tokens_held == 5 .and. stats%free_pages == 1, "what the pool holds")
    call check(index(pagoda_pool_describe(pool), "fp32") > 0, "the pool's plan")
    call expect(pagoda_pool_admit_tokens(host, pool, 1, length), PAGODA_OUT_OF_CAPACITY, "admit")
    call expect(pagoda_pool_release(pool, 3), PAGODA_INVALID_ARGUMENT, "slot")
    call pagoda_pool_destroy(pool)
  end subroutine

end program test_fortran
