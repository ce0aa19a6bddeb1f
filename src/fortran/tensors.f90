! SPDX-License-Identifier: Apache-2.0
!> Of the Fortran interface: tensors of arrays. Use module pagoda.
module pagoda_tensors
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only : int8, int16, real32, real64
  use pagoda_base
  implicit none
  private

  !> The tensor of a contiguous array of rank 1 to 4: pagoda_dense(array) for real32, real64 and int8;
  !> pagoda_dense(array, type) for int16, which holds the bits of PAGODA_FP16 or PAGODA_BF16; and
  !> pagoda_dense(pointer, type, shape) for memory of any kind, with the shape in Fortran's order.
  interface pagoda_dense
    module procedure dense_pointer
    module procedure dense_fp64_1, dense_fp64_2, dense_fp64_3, dense_fp64_4
    module procedure dense_fp32_1, dense_fp32_2, dense_fp32_3, dense_fp32_4
    module procedure dense_int8_1, dense_int8_2, dense_int8_3, dense_int8_4
    module procedure dense_bits16_1, dense_bits16_2, dense_bits16_3, dense_bits16_4
  end interface

  public :: pagoda_dense

contains

  !> `extents`: in Fortran's order, at most four.
  function dense_pointer(pointer, type, extents) result(tensor)
    type(c_ptr), intent(in) :: pointer
    integer(c_int32_t), intent(in) :: type
    integer, intent(in) :: extents(:)
    type(pagoda_tensor) :: tensor
    integer :: axis
    tensor%data = pointer
    tensor%type = type
    tensor%rank = size(extents)
    do axis = 1, min(size(extents), 4)
      tensor%extent(axis) = extents(size(extents) + 1 - axis)
    end do
  end function

  function dense_fp64_1(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp64_2(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp64_3(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp64_4(array) result(tensor)
    real(real64), intent(in), target, contiguous :: array(:,:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP64, shape(array))
  end function

  function dense_fp32_1(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_fp32_2(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_fp32_3(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_fp32_4(array) result(tensor)
    real(real32), intent(in), target, contiguous :: array(:,:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_FP32, shape(array))
  end function

  function dense_int8_1(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_int8_2(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_int8_3(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_int8_4(array) result(tensor)
    integer(int8), intent(in), target, contiguous :: array(:,:,:,:)
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), PAGODA_INT8, shape(array))
  end function

  function dense_bits16_1(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

  function dense_bits16_2(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:,:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

  function dense_bits16_3(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:,:,:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

  function dense_bits16_4(array, type) result(tensor)
    integer(int16), intent(in), target, contiguous :: array(:,:,:,:)
    integer(c_int32_t), intent(in) :: type
    type(pagoda_tensor) :: tensor
    tensor = pagoda_dense(c_loc(array), type, shape(array))
  end function

end module pagoda_tensors
