! SPDX-License-Identifier: Apache-2.0
! A program in Fortran, linked with Pagoda::fortran alone: a pool on the host whose keys are zero, so that a decode gives
! the mean of the values; and a list of its last two tokens.
program consumer
  use, intrinsic :: iso_c_binding
  use pagoda
  implicit none
  integer, parameter :: dim = 16, tokens = 4
  real(c_float), target :: k(dim, 1, tokens), v(dim, 1, tokens), q(dim, 1, 1), out(dim, 1, 1)
  type(pagoda_pool_options) :: options
  type(pagoda_decode_options) :: of_lists
  type(pagoda_entry), target :: entries(1)
  type(pagoda_entry_query), target :: queries(1)
  type(pagoda_entries) :: list
  type(pagoda_prompt) :: prompt
  type(pagoda_cache) :: kv
  type(c_ptr) :: plan = c_null_ptr
  integer(c_int32_t), target :: ids(tokens) = [1, 2, 3, 4]
  integer(c_int64_t) :: bytes = -1
  type(c_ptr) :: host = c_null_ptr, pool = c_null_ptr
  integer(c_int32_t) :: slots(1), matched = -1
  integer :: t
  k = 0
  q = 1
  do t = 1, tokens
    v(:, :, t) = t
  end do
  call pagoda_init(options)
  options%layout = PAGODA_PAGED
  options%type = PAGODA_FP32
  options%num_kv_heads = 1
  options%head_dim = dim
  options%max_seq_len = tokens
  options%max_sequences = 1
  options%num_q_heads = 1
  options%page_size = 2
  call succeed(pagoda_initialize())
  call succeed(pagoda_exec_create(PAGODA_SPACE_HOST, c_null_ptr, host))
  call succeed(pagoda_pool_create(host, options, pool))
  call succeed(pagoda_pool_admit(host, pool, pagoda_dense(k), pagoda_dense(v), slots(1)))
  call succeed(pagoda_pool_decode(host, pool, 1, slots, pagoda_dense(q), pagoda_dense(out), pagoda_no_tensor))
  call succeed(pagoda_exec_fence(host))
  if (any(abs(out - 2.5) > 1e-5)) error stop "wrong"
  call pagoda_init(kv)
  call pagoda_init(of_lists)
  call pagoda_init(list)
  call pagoda_init(prompt)
  prompt%token_ids = c_loc(ids)
  prompt%num_tokens = tokens
  call succeed(pagoda_pool_match(pool, prompt, matched))
  call succeed(pagoda_pool_kv(host, pool, 1, slots, kv))
  of_lists%num_q_heads = 1
  of_lists%max_entries = 1
  entries(1) = pagoda_entry(sequence=slots(1), first=2, num_queries=1)
  queries(1) = pagoda_entry_query(sequence=slots(1))
  list%entries = c_loc(entries)
  list%queries = c_loc(queries)
  list%num_entries = 1
  list%num_queries = 1
  call succeed(pagoda_plan_create(host, kv, of_lists, plan))
  call succeed(pagoda_decode_entries(host, plan, pagoda_dense(q), kv, list, pagoda_dense(out), pagoda_no_tensor, &
      pagoda_no_tensor, pagoda_no_tensor))
  call succeed(pagoda_exec_fence(host))
  call succeed(pagoda_bytes_per_token(1, dim, 0, PAGODA_FP32, bytes))
  call pagoda_plan_destroy(plan)
  call pagoda_pool_destroy(pool)
  call pagoda_exec_destroy(host)
  call succeed(pagoda_finalize())
  if (any(abs(out - 3.5) > 1e-5) .or. matched /= 0 .or. bytes /= 128) error stop "wrong"
  print "(3a)", "Pagoda ", pagoda_version_string(), " from Fortran: right"

contains

  subroutine succeed(status)
    integer(c_int32_t), intent(in) :: status
    if (status == PAGODA_SUCCESS) return
    print "(3a)", pagoda_status_name(status), ": ", pagoda_last_error()
    error stop 1
  end subroutine

end program consumer
