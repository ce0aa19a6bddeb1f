! SPDX-License-Identifier: Apache-2.0
!> Checks that go on after a failure. A program ends with finish().
module checks
  use, intrinsic :: iso_c_binding
  use pagoda
  implicit none
  private
  integer :: count_of_checks = 0, failures = 0
  public :: check, expect, finish, size_in_c

  interface
    function size_in_c(which) bind(C, name="size_in_c") result(bytes)
      import :: c_int32_t, c_size_t
      integer(c_int32_t), value :: which
      integer(c_size_t) :: bytes
    end function
  end interface

contains

  subroutine check(ok, what)
    logical, intent(in) :: ok
    character(len=*), intent(in) :: what
    count_of_checks = count_of_checks + 1
    if (ok) return
    failures = failures + 1
    print "(4a)", "failed: ", what, "; last error: ", pagoda_last_error()
  end subroutine

  subroutine expect(status, expected, text)
    integer(c_int32_t), intent(in) :: status, expected
    character(len=*), intent(in), optional :: text
    call check(status == expected, "got " // pagoda_status_name(status) // ", expected " // pagoda_status_name(expected))
    if (present(text)) call check(index(pagoda_last_error(), text) > 0, "the message has no """ // text // """")
  end subroutine

  subroutine finish()
    print "(i0, a, i0, a)", failures, " of ", count_of_checks, " checks failed"
    if (failures > 0 .or. count_of_checks == 0) error stop 1
  end subroutine

end module checks
