/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PAGODA_TESTS_C_DEVICE_H
#define PAGODA_TESTS_C_DEVICE_H

#include <pagoda/pagoda.h>

/* What a C program gets from its own runtime, such as CUDA's: memory of the default execution space, and copies. And
   numbers of any element type. Written in C++ over Kokkos. */
#ifdef __cplusplus
extern "C" {
#endif

void* device_alloc(size_t bytes);
void device_free(void* memory);
void copy_to_device(void* device, const void* host, size_t bytes);
void copy_to_host(void* host, const void* device, size_t bytes);

/* Stores x as dim d of a row of elements, rounded to the type, and returns the stored number. */
double store_dim(pagoda_type type, void* row, int d, double x);
/* The number that dim d of a row holds. */
double load_dim(pagoda_type type, const void* row, int d);
/* The block scale that the byte stands for. */
double block_scale_of(pagoda_type type, unsigned char byte);

#ifdef __cplusplus
}
#endif

#endif
