! SPDX-License-Identifier: Apache-2.0
! A program in Fortran, linked with Pagoda::fortran alone: a pool on the host whose keys are zero, so that a decode gives
! the mean of the values.
program consumer
  use, intrinsic :: iso_c_binding
  use pagoda
  implicit none
  integer, parameter :: dim = 16, tokens = 4
  real(c_float), target :: k(dim, 1, tokens), v(dim, 1, tokens), q(dim, 1, 1), out(dim, 1, 1)
  type(pagoda_pool_options) :: options
  type(c_ptr) :: host = c_null_ptr, pool = c_null_ptr
  integer(c_int32_t) :: slots(1)
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
  call succeed(pagoda_initialize())
  call succeed(pagoda_exec_create(PAGODA_SPACE_HOST, c_null_ptr, host))
  call succeed(pagoda_pool_create(host, options, pool))
  call succeed(pagoda_pool_admit(host, pool, pagoda_dense(k), pagoda_dense(v), slots(1)))
  call succeed(pagoda_pool_decode(host, pool, 1, slots, pagoda_dense(q), pagoda_dense(out), pagoda_no_tensor))
  call succeed(pagoda_exec_fence(host))
  call pagoda_pool_destroy(pool)
  call pagoda_exec_destroy(host)
  call succeed(pagoda_finalize())
  if (any(abs(out - 2.5) > 1e-5)) error stop "wrong"
  print "(3a)", "Pagoda ", pagoda_version_string(), " from Fortran: right"

contains

  subroutine succeed(status)
    integer(c_int32_t), intent(in) :: status
    if (status == PAGODA_SUCCESS) return
    print "(3a)", pagoda_status_name(status), ": ", pagoda_last_error()
    error stop 1
  end subroutine

end program consumer
