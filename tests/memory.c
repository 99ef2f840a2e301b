// SPDX-License-Identifier: MIT OR Apache-2.0
/* Host memory, call by call, beside what CUDA answers. */
#define _GNU_SOURCE
#include "device.h"
