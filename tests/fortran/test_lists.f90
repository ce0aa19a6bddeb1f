! SPDX-License-Identifier: Apache-2.0
! Lists, shared prefixes, memory and prompts from Fortran, against attention in real64 or counts that are known, in the
! host execution space.
program test_lists
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only : real32, real64
  use pagoda
  use checks
  implicit none

  integer, parameter :: batch = 3, q_heads = 4, kv_heads = 2, dim = 32, page = 8, pages_each = 3, drafts = 4
  integer, parameter :: tokens = page * pages_each
  type(c_ptr) :: host = c_null_ptr
  integer(c_int32_t), target :: seq_lens(batch) = [19, 24, 17], table(pages_each, batch)
  real(real32), pointer :: k(:, :, :, :), v(:, :, :, :)
  real(real32), target :: q(dim, q_heads, batch * drafts), out(dim, q_heads, batch * drafts)
  real(real64), target :: lse(q_heads, batch * drafts)
  type(c_ptr) :: memory = c_null_ptr
  type(pagoda_cache) :: kv
  logical :: sees(tokens, batch * drafts)

  call test_sizes()
  call test_capacity()
  call expect(pagoda_initialize(), PAGODA_SUCCESS)
  call expect(pagoda_exec_create(PAGODA_SPACE_HOST, c_null_ptr, host), PAGODA_SUCCESS)
  if (pagoda_type_is_enabled(PAGODA_FP32) /= 0) then
    call make_cache()
    call test_drafts()
    call test_states()
    call test_prefix()
    call test_prompts()
    call pagoda_cache_memory_destroy(memory)
  end if
  call pagoda_exec_destroy(host)
  call expect(pagoda_finalize(), PAGODA_SUCCESS)
  call finish()

contains

  subroutine test_sizes()
    type(pagoda_entry) :: entry
    type(pagoda_entry_query) :: query
    type(pagoda_entries) :: list
    type(pagoda_cache_shape) :: cache_shape
    type(pagoda_row_tile) :: tile
    type(pagoda_device_rates) :: rates
    type(pagoda_prefix_options) :: options
    type(pagoda_batch_pages) :: tables
    type(pagoda_prefix_report) :: report
    type(pagoda_prompt) :: prompt
    type(pagoda_prefix_stats) :: stats
    call check(c_sizeof(entry) == size_in_c(5), "size of pagoda_entry")
    call check(c_sizeof(query) == size_in_c(6), "size of pagoda_entry_query")
    call check(c_sizeof(list) == size_in_c(7), "size of pagoda_entries")
    call check(c_sizeof(cache_shape) == size_in_c(8), "size of pagoda_cache_shape")
    call check(c_sizeof(tile) == size_in_c(9), "size of pagoda_row_tile")
    call check(c_sizeof(rates) == size_in_c(10), "size of pagoda_device_rates")
    call check(c_sizeof(options) == size_in_c(11), "size of pagoda_prefix_options")
    call check(c_sizeof(tables) == size_in_c(12), "size of pagoda_batch_pages")
    call check(c_sizeof(report) == size_in_c(13), "size of pagoda_prefix_report")
    call check(c_sizeof(prompt) == size_in_c(14), "size of pagoda_prompt")
    call check(c_sizeof(stats) == size_in_c(15), "size of pagoda_prefix_stats")
  end subroutine

  subroutine test_capacity()
    integer(c_int64_t) :: n
    real(c_double) :: fraction
    n = -1
    fraction = -1
    call expect(pagoda_bytes_per_token(8, 128, 0, PAGODA_FP16, n), PAGODA_SUCCESS)
    call check(n == 4096, "bytes of a token")
    call expect(pagoda_latent_bytes_per_token(512, 64, PAGODA_BF16, n), PAGODA_SUCCESS)
    call check(n == 1152, "bytes of a latent token")
    call expect(pagoda_reserved_tokens(17_c_int64_t, 16_c_int64_t, n), PAGODA_SUCCESS)
    call check(n == 32, "reserved tokens")
    call expect(pagoda_waste_fraction(512_c_int64_t, 2048_c_int64_t, fraction), PAGODA_SUCCESS)
    call check(abs(fraction - 0.75) < 1e-12, "waste")
    call expect(pagoda_sequences_that_fit(2048_c_int64_t, 16_c_int64_t, 17_c_int64_t, 16_c_int64_t, n), PAGODA_SUCCESS)
    call check(n == 4, "sequences that fit")
    call expect(pagoda_reserved_tokens(1_c_int64_t, 0_c_int64_t, n), PAGODA_INVALID_ARGUMENT, "page_size is 0")
  end subroutine

  !> Pages in memory of the library. The first page of all sequences is page 0.
  subroutine make_cache()
    type(pagoda_cache_shape) :: extents
    integer :: i
    table = reshape([(i - 1, i=1, size(table))], shape(table))
    table(1, :) = 0
    call pagoda_init(kv)
    call pagoda_init(extents)
    extents%layout = PAGODA_PAGED
    extents%type = PAGODA_FP32
    extents%num_pages = size(table)
    extents%page_size = page
    extents%num_kv_heads = kv_heads
    extents%head_dim = dim
    call expect(pagoda_cache_memory_create(host, extents, memory, kv%k, kv%v), PAGODA_SUCCESS)
    call c_f_pointer(kv%k%data, k, [dim, kv_heads, page, size(table)])
    call c_f_pointer(kv%v%data, v, [dim, kv_heads, page, size(table)])
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call random_number(k)
    call random_number(v)
    call random_number(q)
    v = v - 0.5
    kv%layout = PAGODA_PAGED
    kv%seq_lens = c_loc(seq_lens)
    kv%num_sequences = batch
    kv%block_table = c_loc(table)
    kv%max_pages = pages_each
    extents%head_dim = 0
    call expect(pagoda_cache_memory_create(host, extents, memory, kv%k, kv%v), PAGODA_INVALID_ARGUMENT, "head_dim is 0")
  end subroutine

  !> Compares rows 1 to n of out and lse with attention over what `sees` says; row t belongs to sequence of(t), from 1.
  subroutine compare(n, of)
    integer, intent(in) :: n, of(:)
    real(real64) :: total, p, row(dim), sizes(dim)
    integer :: r, h, t, g, at
    do r = 1, n
      do h = 1, q_heads
        g = (h - 1) / (q_heads / kv_heads) + 1
        total = 0
        row = 0
        sizes = 0
        do t = 1, seq_lens(of(r))
          if (.not. sees(t, r)) cycle
          at = table((t - 1) / page + 1, of(r)) + 1
          p = exp(dot_product(real(q(:, h, r), real64), real(k(:, g, mod(t - 1, page) + 1, at), real64)) / &
              sqrt(real(dim, real64)))
          total = total + p
          row = row + p * v(:, g, mod(t - 1, page) + 1, at)
          sizes = sizes + p * abs(v(:, g, mod(t - 1, page) + 1, at))
        end do
        call check(all(abs(out(:, h, r) * total - row) <= 1e-5 * sizes), "a row of out")
        call check(abs(lse(h, r) - log(total)) <= 1e-5, "a log-sum-exp")
      end do
    end do
  end subroutine

  !> The plan of a list.
  function plan_of(max_entries, max_queries) result(plan)
    integer, intent(in) :: max_entries, max_queries
    type(pagoda_decode_options) :: options
    type(c_ptr) :: plan
    plan = c_null_ptr
    call pagoda_init(options)
    options%num_q_heads = q_heads
    options%max_entries = max_entries
    options%max_entry_queries = max_queries
    call expect(pagoda_plan_create(host, kv, options, plan), PAGODA_SUCCESS)
  end function

  !> Each sequence has drafts 1 to 4: 2 and 3 are children of 1, and 4 is a child of 2.
  subroutine test_drafts()
    logical, parameter :: ancestor(drafts, drafts) = reshape([.true., .false., .false., .false., &
        .true., .true., .false., .false., .true., .false., .true., .false., .true., .true., .false., .true.], &
        [drafts, drafts])
    type(pagoda_entry), target :: entries(batch)
    type(pagoda_entry_query), target :: queries(batch * drafts)
    integer(c_int64_t), target :: masks(2, batch * drafts)
    type(pagoda_entries) :: list
    type(c_ptr) :: plan
    integer :: b, i, j, row
    masks = 0
    sees = .false.
    do b = 1, batch
      entries(b) = pagoda_entry(sequence=b - 1, query_begin=(b - 1) * drafts, num_queries=drafts)
      do i = 1, drafts
        row = (b - 1) * drafts + i
        queries(row) = pagoda_entry_query(token=row - 1, sequence=b - 1, behind=drafts, mask=2 * (row - 1))
        sees(1:seq_lens(b) - drafts, row) = .true.
        do j = 1, drafts
          if (.not. ancestor(j, i)) cycle
          sees(seq_lens(b) - drafts + j, row) = .true.
          masks(1, row) = ibset(masks(1, row), j - 1)
        end do
      end do
    end do
    call pagoda_init(list)
    list%entries = c_loc(entries)
    list%queries = c_loc(queries)
    list%masks = c_loc(masks)
    list%num_entries = batch
    list%num_queries = size(queries)
    list%num_mask_words = size(masks)
    plan = plan_of(batch, drafts)
    out = 7
    call expect(pagoda_check_entries(host, plan, pagoda_dense(q), kv, list, 0), PAGODA_SUCCESS)
    call expect(pagoda_decode_entries(host, plan, pagoda_dense(q), kv, list, pagoda_dense(out), pagoda_dense(lse), &
        pagoda_no_tensor, pagoda_no_tensor), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call compare(batch * drafts, [((b, i=1, drafts), b=1, batch)])
    entries(2)%sequence = batch
    call expect(pagoda_check_entries(host, plan, pagoda_dense(q), kv, list, 0), PAGODA_INVALID_ARGUMENT, &
        "entry 1 of the list has sequence 3; allowed: 0 to 2")
    list%struct_size = 1
    call expect(pagoda_decode_entries(host, plan, pagoda_dense(q), kv, list, pagoda_dense(out), pagoda_dense(lse), &
        pagoda_no_tensor, pagoda_no_tensor), PAGODA_INVALID_ARGUMENT, "list.struct_size is 1")
    call pagoda_plan_destroy(plan)
  end subroutine

  !> The page that all sequences share, and the rest of each: two partial states a query token.
  subroutine test_states()
    type(pagoda_entry), target :: entries(batch + 1)
    type(pagoda_entry_query), target :: queries(batch)
    integer(c_int32_t), target :: state_begin(batch + 1)
    real(real32), target :: state_out(dim, q_heads, 2 * batch), state_lse(q_heads, 2 * batch)
    type(pagoda_entries) :: list
    type(c_ptr) :: plan
    integer :: b
    entries(1) = pagoda_entry(first=0, last=page, num_queries=batch, state=0)
    do b = 1, batch
      entries(b + 1) = pagoda_entry(sequence=b - 1, first=page, query_begin=b - 1, num_queries=1, state=1)
      queries(b) = pagoda_entry_query(token=b - 1, sequence=b - 1)
    end do
    state_begin = [(2 * b, b=0, batch)]
    sees = .true.
    call pagoda_init(list)
    list%entries = c_loc(entries)
    list%queries = c_loc(queries)
    list%state_begin = c_loc(state_begin)
    list%num_entries = batch + 1
    list%num_queries = batch
    list%num_state_begin = batch + 1
    plan = plan_of(batch + 1, batch)
    out = 7
    call expect(pagoda_decode_entries(host, plan, pagoda_dense(q(:, :, :batch)), kv, list, &
        pagoda_dense(out(:, :, :batch)), pagoda_dense(lse(:, :batch)), pagoda_dense(state_out), pagoda_dense(state_lse)), &
        PAGODA_SUCCESS)
    call expect(pagoda_merge_entries(host, plan, list, pagoda_dense(state_out), pagoda_dense(state_lse), &
        pagoda_dense(out(:, :, :batch)), pagoda_dense(lse(:, :batch))), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call compare(batch, [1, 2, 3])
    call expect(pagoda_merge_entries(host, plan, list, pagoda_no_tensor, pagoda_dense(state_lse), &
        pagoda_dense(out(:, :, :batch)), pagoda_no_tensor), PAGODA_INVALID_ARGUMENT, "state_out")
    call pagoda_plan_destroy(plan)
  end subroutine

  subroutine test_prefix()
    type(pagoda_decode_options) :: options
    type(pagoda_prefix_options) :: prefix
    type(pagoda_device_rates) :: rates
    type(pagoda_batch_pages) :: tables
    type(pagoda_prefix_report) :: report
    type(c_ptr) :: decoder
    integer(c_int32_t) :: packed
    integer(c_int64_t) :: key
    decoder = c_null_ptr
    call pagoda_init(options)
    call pagoda_init(prefix)
    call pagoda_init(rates)
    call pagoda_init(tables)
    call pagoda_init(report)
    options%num_q_heads = q_heads
    call expect(pagoda_prefix_create(host, kv, options, prefix, decoder), PAGODA_SUCCESS)
    call expect(pagoda_prefix_get_rates(decoder, rates), PAGODA_SUCCESS)
    rates%memory_bytes_per_us = 1 ! reading a page twice is then expensive
    rates%cache_bytes_per_us = 1
    rates%state_bytes_per_us = 1e9
    rates%item_us = 0
    rates%list_us = 0
    call expect(pagoda_prefix_set_rates(decoder, rates), PAGODA_SUCCESS)
    tables%batch = batch
    tables%num_sequences = batch
    tables%page_size = page
    tables%seq_lens = c_loc(seq_lens)
    tables%block_table = c_loc(table)
    tables%max_pages = pages_each
    call expect(pagoda_prefix_plan(decoder, tables, packed), PAGODA_SUCCESS)
    call expect(pagoda_prefix_install(host, decoder, packed), PAGODA_SUCCESS)
    call expect(pagoda_prefix_get_report(decoder, report), PAGODA_SUCCESS)
    call check(packed == 1 .and. report%entries > 0 .and. report%new_plan == 1, "a list of shared pages")
    call check(len(pagoda_prefix_plain_because(report)) == 0, "no reason for plain decodes")
    call expect(pagoda_prefix_graph_key(decoder, key), PAGODA_SUCCESS)
    call expect(pagoda_prefix_packed(decoder, packed), PAGODA_SUCCESS)
    call check(packed == 1 .and. key /= 0, "key of a list")
    call check(index(pagoda_prefix_describe(decoder, 1), "lists of entries") > 0, "the plan of lists")
    out = 7
    call expect(pagoda_prefix_decode(host, decoder, pagoda_dense(q(:, :, :batch)), kv, pagoda_dense(out(:, :, :batch)), &
        pagoda_dense(lse(:, :batch))), PAGODA_SUCCESS)
    call expect(pagoda_exec_fence(host), PAGODA_SUCCESS)
    call compare(batch, [1, 2, 3])
    tables%block_table = c_null_ptr
    call expect(pagoda_prefix_update(host, decoder, tables, packed), PAGODA_SUCCESS)
    call expect(pagoda_prefix_get_report(decoder, report), PAGODA_SUCCESS)
    call check(packed == 0, "plain")
    call check(len(pagoda_prefix_plain_because(report)) > 0, "a reason for plain decodes")
    tables%batch = -1
    call expect(pagoda_prefix_update(host, decoder, tables, packed), PAGODA_INVALID_ARGUMENT, "tables.batch is -1")
    call pagoda_prefix_destroy(decoder)
  end subroutine

  subroutine test_prompts()
    integer(c_int32_t), target :: ids(5) = [3, 1, 4, 1, 5]
    integer(c_int64_t) :: hashes(1) = [7_c_int64_t]
    real(real32), target :: rows(dim, 1, 5)
    type(pagoda_pool_options) :: options
    type(pagoda_pool_stats) :: full
    type(pagoda_prompt) :: prompt
    type(pagoda_prefix_stats) :: stats
    type(c_ptr) :: pool
    integer(c_int32_t) :: first, second, third, n
    pool = c_null_ptr
    rows = 1
    call pagoda_init(options)
    call pagoda_init(full)
    call pagoda_init(prompt)
    call pagoda_init(stats)
    options%layout = PAGODA_PAGED
    options%type = PAGODA_FP32
    options%num_kv_heads = 1
    options%head_dim = dim
    options%max_seq_len = 8
    options%max_sequences = 3
    options%page_size = 2
    call expect(pagoda_pool_create(host, options, pool), PAGODA_SUCCESS)
    call expect(pagoda_pool_get_options(pool, options), PAGODA_SUCCESS)
    call check(options%num_pages == 12 .and. options%head_dim_v == dim, "options of the pool")
    prompt%token_ids = c_loc(ids)
    prompt%num_tokens = 5
    call expect(pagoda_pool_can_admit_prompt(pool, prompt, n), PAGODA_SUCCESS)
    call check(n == 1, "room for a prompt")
    call expect(pagoda_pool_admit_prompt(host, pool, prompt, pagoda_dense(rows), pagoda_dense(rows), first), PAGODA_SUCCESS)
    call expect(pagoda_pool_match(pool, prompt, n), PAGODA_SUCCESS)
    call check(n == 4, "tokens that match")
    call expect(pagoda_pool_admit_prompt(host, pool, prompt, pagoda_dense(rows(:, :, 5:5)), pagoda_dense(rows(:, :, 5:5)), &
        second), PAGODA_SUCCESS)
    call expect(pagoda_pool_admit_matched(host, pool, prompt, third), PAGODA_SUCCESS)
    call expect(pagoda_pool_named_tokens(pool, third, n), PAGODA_SUCCESS)
    call check(n == 4, "names of a matched sequence")
    call expect(pagoda_pool_append(host, pool, 1, [third], c_null_ptr, pagoda_dense(rows(:, :, 5:5)), &
        pagoda_dense(rows(:, :, 5:5))), PAGODA_SUCCESS)
    call expect(pagoda_pool_name_tokens(pool, third, 1, ids(5:5)), PAGODA_SUCCESS)
    call expect(pagoda_pool_name_pages(pool, third, 1, hashes), PAGODA_INVALID_ARGUMENT, "::name: slot 2")
    call expect(pagoda_pool_get_prefix_stats(pool, stats), PAGODA_SUCCESS)
    call check(stats%prompts == 3 .and. stats%hit_tokens == 8 .and. stats%hit_rate > 0.5, "what the index saved")
    call expect(pagoda_pool_is_indexed(pool, 12, n), PAGODA_INVALID_ARGUMENT, "page is 12; allowed: 0 to 11")
    call expect(pagoda_pool_release(pool, first), PAGODA_SUCCESS)
    call expect(pagoda_pool_release(pool, second), PAGODA_SUCCESS)
    call expect(pagoda_pool_release(pool, third), PAGODA_SUCCESS)
    call expect(pagoda_pool_get_stats(pool, full), PAGODA_SUCCESS)
    call check(full%evictable_pages == 2, "pages that the index caches")
    call expect(pagoda_pool_evict(pool, 1, n), PAGODA_SUCCESS)
    call check(n == 1, "pages evicted")
    call expect(pagoda_pool_reset_prefix_stats(pool), PAGODA_SUCCESS)
    call expect(pagoda_pool_get_prefix_stats(pool, stats), PAGODA_SUCCESS)
    call check(stats%prompts == 0 .and. stats%indexed_pages == 1, "counts after a reset")
    call pagoda_pool_destroy(pool)
  end subroutine

end program test_lists
