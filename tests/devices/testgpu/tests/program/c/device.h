/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The device, as programs of the tests see it. */
#define CSR(number) \
	({ \
		unsigned long value_; \
		__asm__ volatile("csrr %0, " #number : "=r"(value_)); \
		value_; \
	})

static inline long call(long number, long first, long second)
{
	register long a0 __asm__("a0") = first;
	register long a1 __asm__("a1") = second;
	register long a7 __asm__("a7") = number;

	__asm__ volatile("ecall" : "+r"(a0) : "r"(a1), "r"(a7) : "memory");
	return a0;
}

#define NUMBER CSR(0xcce)
#define THREAD CSR(0xccc)
#define BLOCK CSR(0xccd)
#define barrier() ((void)call(1, 0, 0))
#define print(text) call(2, (long)(text), sizeof(text) - 1)
