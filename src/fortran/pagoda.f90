! SPDX-License-Identifier: Apache-2.0
!> The Fortran 2008 interface: the C interface (pagoda.h, pagoda_lists.h, pagoda_prefix.h, pagoda_memory.h and pagoda_pool.h,
!> which document every call and field), with derived types for its structs, and tensors made from contiguous arrays.
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
  use pagoda_base, pagoda_text_of_c => pagoda_text_of
  use pagoda_tensors
  use pagoda_decodes
  use pagoda_lists
  use pagoda_prefixes
  use pagoda_memory
  use pagoda_pools
  use pagoda_prompts
  implicit none
  private :: pagoda_text_of_c
end module pagoda
