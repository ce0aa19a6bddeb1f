! SPDX-License-Identifier: Apache-2.0
! Score options, page lists, workspaces, merges, writes and the calls of a pool from Fortran, against results in real64, in
! the host execution space.
program test_calls
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only : real32, real64
  use pagoda
  use checks
  implicit none

  integer, parameter :: batch = 3, q_heads = 4, kv_heads = 2, dim = 32, page = 8, pages_each = 3, tokens = page * pages_each
  integer, parameter :: queries_each = 3, queries = batch * queries_each
  type(c_ptr) :: host = c_null_ptr
  integer(c_int32_t), target :: seq_lens(batch) = [19, 24, 5]
  real(real32), target :: k(dim, kv_heads, tokens, batch), v(dim, kv_heads, tokens, batch)
  real(real32), target :: q(dim, q_heads, queries), out(dim, q_heads, queries), lse(q_heads, queries)

  call random_number(k)
  call random_number(v)
  call random_number(q)
  v = v - 0.5
  call expect(pagoda_initialize(), PAGODA_SUCCESS)
  call expect(pagoda_exec_create(PAGODA_SPACE_HOST, c_null_ptr, host), PAGODA_SUCCESS)
  if (pagoda_type_is_enabled(PAGODA_FP32) /= 0) then
    call test_scores()
    call test_page_lists()
    call test_merges()
    call test_write_kv()
    call test_pool()
  end if
  call pagoda_exec_destroy(host)
  call expect(pagoda_finalize(), PAGODA_SUCCESS)
  call finish()

contains

  !> Compares with attention of query token t (from 1) of the batch. A negative argument is off.
  subroutine compare(query_begin, scale, window, initial, cap, causal, slopes, sinks)
    integer, intent(in) :: query_begin(batch + 1), window, initial
    real(real64), intent(in) :: scale, cap
    logical, intent(in) :: causal
    real(real32), intent(in) :: slopes(q_heads), sinks(q_heads)
    real(real64) :: total, score, row(dim), sizes(dim)
    integer :: b, h, t, g, i, position
    do b = 1, batch
      do i = query_begin(b) + 1, query_begin(b + 1)
        position = seq_lens(b) - (query_begin(b + 1) - i)
        do h = 1, q_heads
          g = (h - 1) / (q_heads / kv_heads) + 1
          total = exp(real(sinks(h), real64))
          row = 0
          sizes = 0
          do t = 1, seq_lens(b)
            if (causal .and. t > position) cycle
            if (window > 0 .and. t <= position - window .and. t > initial) cycle
            score = scale * dot_product(real(q(:, h, i), real64), real(k(:, g, t, b), real64))
            if (cap > 0) score = cap * tanh(score / cap)
            score = exp(score + slopes(h) * (t - position))
            total = total + score
            row = row + score * v(:, g, t, b)
            sizes = sizes + score * abs(v(:, g, t, b))
          end do
          call check(all(abs(out(:, h, i) * total - row) <= 1e-5 * sizes), "a row of out")
          call check(abs(lse(h, i) - log(total)) <= 1e-5, "a log-sum-exp")
        end do
      end do
    end do
  end subroutine

  subroutine describe(kv)
    type(pagoda_cache), intent(out) :: kv
    call pagoda_init(kv)
    kv%seq_lens = c_loc(seq_lens)
    kv%num_sequences = batch
    kv%k = pagoda_dense(k)
    kv%v = pagoda_dense(v)
  end subroutine

  subroutine decode(kv, options)
    type(pagoda_cache), intent(in) :: kv
    type(pagoda_decode_options), intent(in) :: options
    type(c_ptr) :: plan
    plan = c_null_ptr
    out = 7
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
    call expect(pagoda_decode(host, plan, pagoda_dense(q), kv, pagoda_dense(out), pagoda_dense(lse)), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call pagoda_plan_destroy(plan)
  end subroutine

  subroutine test_scores()
    real(real32), parameter :: none = -huge(1.0)
    real(real32), target :: slopes(q_heads), sinks(q_heads)
    integer(c_int32_t), target :: counts(batch + 1) = [0, 4, 5, 9]
    character(kind=c_char), target :: backend(8) = ["g", "e", "n", "e", "r", "i", "c", c_null_char]
    type(pagoda_cache) :: kv
    type(pagoda_decode_options) :: options
    real(real64) :: scale, cap
    integer :: option, query_begin(batch + 1)
    call describe(kv)
    do option = 1, 7
      call pagoda_init(options)
      options%num_q_heads = q_heads
      options%max_query_len = queries_each
      query_begin = [0, 3, 6, 9]
      scale = 1 / sqrt(real(dim, real64))
      cap = 0
      slopes = 0
      sinks = none
      select case (option)
      case (1)
        options%not_causal = 1
      case (2)
        options%window = 5
        options%num_initial_tokens = 2
      case (3)
        cap = 0.75
        options%logit_soft_cap = cap
      case (4)
        slopes = [0.1, 0.2, 0.4, 0.8]
        options%alibi_slopes = c_loc(slopes)
      case (5)
        sinks = [0.5, -1.0, 2.0, 0.0]
        options%sinks = c_loc(sinks)
      case (6)
        scale = 0.3
        options%softmax_scale = scale
        options%backend = c_loc(backend)
      case (7)
        query_begin = counts
        options%max_query_len = 4
        options%cu_seqlens_q = c_loc(counts)
        options%num_cu_seqlens_q = batch + 1
      end select
      call decode(kv, options)
      call compare(query_begin, scale, options%window, options%num_initial_tokens, cap, option /= 1, slopes, sinks)
    end do
  end subroutine

  !> CSR page lists, tokens of a head adjacent (HND), and a workspace of the program.
  subroutine test_page_lists()
    real(real32), target :: k_pages(dim, page, kv_heads, batch * pages_each), v_pages(dim, page, kv_heads, batch * pages_each)
    integer(c_int32_t), target :: indptr(batch + 1) = [0, 3, 6, 7], indices(7) = [8, 0, 5, 3, 1, 7, 2]
    real(real32), parameter :: zero(q_heads) = 0, none(q_heads) = -huge(1.0)
    real(real64), target, allocatable :: workspace(:)
    type(pagoda_cache) :: kv
    type(pagoda_decode_options) :: options
    type(c_ptr) :: plan
    integer(c_size_t) :: bytes, same
    integer :: b, t, at
    plan = c_null_ptr
    do b = 1, batch
      do t = 1, seq_lens(b)
        at = indices(indptr(b) + (t - 1) / page + 1) + 1
        k_pages(:, mod(t - 1, page) + 1, :, at) = k(:, :, t, b)
        v_pages(:, mod(t - 1, page) + 1, :, at) = v(:, :, t, b)
      end do
    end do
    call describe(kv)
    kv%layout = PAGODA_PAGED_CSR
    kv%order = PAGODA_HND
    kv%k = pagoda_dense(k_pages)
    kv%v = pagoda_dense(v_pages)
    kv%page_indptr = c_loc(indptr)
    kv%page_indices = c_loc(indices)
    kv%num_page_indices = size(indices)
    kv%max_seq_len = tokens
    call pagoda_init(options)
    options%num_q_heads = q_heads
    options%max_query_len = queries_each
    bytes = 0
    call expect(pagoda_workspace_bytes(host, kv, options, bytes), PAGODA_SUCCESS)
    allocate (workspace(bytes / 8 + 2))
    options%workspace = c_loc(workspace(merge(1, 2, mod(address(c_loc(workspace)), 16_c_intptr_t) == 0)))
    options%workspace_bytes = bytes
    call decode(kv, options)
    call compare([0, 3, 6, 9], 1 / sqrt(real(dim, real64)), 0, 0, 0.0_real64, .true., zero, none)
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
    same = bytes + 1
    call expect(pagoda_plan_workspace_bytes(plan, same), PAGODA_SUCCESS)
    call check(same == bytes, "bytes of the workspace")
    same = huge(same)
    call expect(pagoda_plan_persistent_bytes(plan, same), PAGODA_SUCCESS)
    call check(same < huge(same), "bytes of a plan")
    call pagoda_plan_destroy(plan)
  end subroutine

  integer(c_intptr_t) function address(pointer)
    type(c_ptr), intent(in) :: pointer
    address = transfer(pointer, address)
  end function

  subroutine test_merges()
    real(real32), target :: outs(dim, q_heads, batch, 2), lses(q_heads, batch, 2)
    real(real32), target :: merged(dim, q_heads, batch), logs(q_heads, batch)
    real(real64) :: a, b
    integer :: t, h, way
    call random_number(outs)
    call random_number(lses)
    do way = 1, 2
      merged = 7
      logs = 7
      if (way == 1) then
        call expect(pagoda_merge(host, pagoda_dense(outs), pagoda_dense(lses), pagoda_dense(merged), pagoda_dense(logs)), &
            PAGODA_SUCCESS)
      else
        call expect(pagoda_merge_pair(host, pagoda_dense(outs(:, :, :, 1)), pagoda_dense(lses(:, :, 1)), &
            pagoda_dense(outs(:, :, :, 2)), pagoda_dense(lses(:, :, 2)), pagoda_dense(merged), pagoda_dense(logs)), &
            PAGODA_SUCCESS)
      end if
      call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
      do t = 1, batch
        do h = 1, q_heads
          a = exp(real(lses(h, t, 1), real64))
          b = exp(real(lses(h, t, 2), real64))
          call check(all(abs(merged(:, h, t) * (a + b) - (a * outs(:, h, t, 1) + b * outs(:, h, t, 2))) < 1e-5), "a merge")
          call check(abs(logs(h, t) - log(a + b)) < 1e-5, "its log-sum-exp")
        end do
      end do
    end do
    call expect(pagoda_merge(host, pagoda_dense(merged), pagoda_dense(lses), pagoda_dense(merged), pagoda_no_tensor), &
        PAGODA_INVALID_ARGUMENT, "outs.rank is 3; allowed: 4")
  end subroutine

  logical function same(a, b)
    real(real32), intent(in) :: a(:, :), b(:, :)
    same = all(abs(a - b) <= 0)
  end function

  !> Rows 0, 1 and 2 go to token 5 of page 1, nowhere, and token 0 of page 0.
  subroutine test_write_kv()
    real(real32), target :: k_pages(dim, page, kv_heads, 2), v_pages(dim, page, kv_heads, 2)
    integer(c_int64_t), target :: positions(3) = [13_c_int64_t, -1_c_int64_t, 0_c_int64_t]
    k_pages = 7
    v_pages = 7
    call expect(pagoda_write_kv(host, pagoda_dense(k_pages), pagoda_dense(v_pages), PAGODA_HND, c_loc(positions), &
        3_c_int64_t, pagoda_dense(k(:, :, :3, 1)), pagoda_dense(v(:, :, :3, 1))), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call check(same(k_pages(:, 6, :, 2), k(:, :, 1, 1)) .and. same(k_pages(:, 1, :, 1), k(:, :, 3, 1)), "keys")
    call check(same(v_pages(:, 6, :, 2), v(:, :, 1, 1)) .and. same(v_pages(:, 1, :, 1), v(:, :, 3, 1)), "values")
    call check(count(k_pages < 7) == 2 * dim * kv_heads .and. count(v_pages < 7) == 2 * dim * kv_heads, "other rows")
    call expect(pagoda_write_kv(host, pagoda_dense(k_pages), pagoda_dense(v_pages), 2, c_loc(positions), 3_c_int64_t, &
        pagoda_dense(k(:, :, :3, 1)), pagoda_dense(v(:, :, :3, 1))), PAGODA_INVALID_ARGUMENT, "order is 2")
  end subroutine

  !> Keys are zero and the values of token t are t, so outputs are means.
  subroutine test_pool()
    real(real32), target :: keys(dim, kv_heads, 5), values(dim, kv_heads, 5), ones(dim, q_heads, 2), means(dim, q_heads, 2)
    type(pagoda_pool_options) :: options
    type(pagoda_decode_options) :: decode_options
    type(pagoda_cache) :: kv
    type(c_ptr) :: pool, plan, pages
    integer(c_int32_t), pointer :: table(:)
    integer(c_int32_t) :: slots(2), n
    integer(c_int32_t), target :: counts(2) = [1, 0]
    integer(c_int64_t), target :: position(1) = -1
    integer :: t
    pool = c_null_ptr
    plan = c_null_ptr
    keys = 0
    ones = 1
    do t = 1, 5
      values(:, :, t) = t
    end do
    call pagoda_init(options)
    options%layout = PAGODA_PAGED
    options%type = PAGODA_FP32
    options%num_kv_heads = kv_heads
    options%head_dim = dim
    options%max_seq_len = 8
    options%max_sequences = 3
    options%page_size = 2
    options%num_pages = 6
    call expect(pagoda_pool_create(host, options, pool), PAGODA_SUCCESS)
    call expect(pagoda_pool_admit(host, pool, pagoda_dense(keys), pagoda_dense(values), slots(1)), PAGODA_SUCCESS)
    call expect(pagoda_pool_fork(host, pool, slots(1), 2, slots(2)), PAGODA_SUCCESS)
    call expect(pagoda_pool_block_table(pool, slots(2), pages, n), PAGODA_SUCCESS)
    call check(n == 1, "pages of a fork")
    call c_f_pointer(pages, table, [n])
    call expect(pagoda_pool_page_ref_count(pool, table(1), n), PAGODA_SUCCESS)
    call check(n == 2, "sequences that hold a page")
    call expect(pagoda_pool_holds(pool, slots(2), n), PAGODA_SUCCESS)
    call check(n == 1, "a slot with a sequence")
    call expect(pagoda_pool_holds(pool, 3 - slots(1) - slots(2), n), PAGODA_SUCCESS)
    call check(n == 0, "a slot without one")
    ! Three pages are in use.
    call expect(pagoda_pool_can_admit(pool, 6, n), PAGODA_SUCCESS)
    call check(n == 1, "room for six tokens")
    call expect(pagoda_pool_can_admit(pool, 7, n), PAGODA_SUCCESS)
    call check(n == 0, "no room for seven")
    ! A token of the first sequence, whose rows are written later.
    call expect(pagoda_pool_reserve(host, pool, 2, slots, c_loc(counts)), PAGODA_SUCCESS)
    call expect(pagoda_pool_slot_mapping(pool, slots(1), 5, 1, position), PAGODA_SUCCESS)
    call check(position(1) >= 0 .and. mod(position(1), 2_c_int64_t) == 1, "position of a token")
    call expect(pagoda_pool_write(host, pool, c_loc(position), 1_c_int64_t, pagoda_dense(keys(:, :, 1:1)), &
        pagoda_dense(values(:, :, 3:3))), PAGODA_SUCCESS)

    call pagoda_init(kv)
    call pagoda_init(decode_options)
    decode_options%num_q_heads = q_heads
    call expect(pagoda_pool_kv(host, pool, 2, slots, kv), PAGODA_SUCCESS)
    call check(kv%batch == 2 .and. kv%layout == PAGODA_PAGED .and. kv%k%type == PAGODA_FP32, "the cache of the pool")
    call expect(pagoda_plan_create(host, kv, decode_options, plan), PAGODA_SUCCESS)
    means = 7
    call expect(pagoda_decode(host, plan, pagoda_dense(ones), kv, pagoda_dense(means), pagoda_no_tensor), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call check(all(abs(means(:, :, 1) - 3) < 1e-5) .and. all(abs(means(:, :, 2) - 1.5) < 1e-5), "means by a plan")
    call pagoda_plan_destroy(plan)

    decode_options%window = 2
    call expect(pagoda_pool_prepare(host, pool, decode_options), PAGODA_SUCCESS)
    call expect(pagoda_pool_decode(host, pool, 2, slots, pagoda_dense(ones), pagoda_dense(means), pagoda_no_tensor), &
        PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call check(all(abs(means(:, :, 1) - 4) < 1e-5) .and. all(abs(means(:, :, 2) - 1.5) < 1e-5), "means of a window")
    decode_options%max_entries = 1
    call expect(pagoda_pool_prepare(host, pool, decode_options), PAGODA_INVALID_ARGUMENT)
    call pagoda_pool_destroy(pool)
  end subroutine

end program test_calls
