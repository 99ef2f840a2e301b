/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What must hold after every test, whatever it does. */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "harness.h"

/**
 * struct oracle - the kernel as it was before a test
 * @pins: pages pinned
 * @charged: bytes charged to root; -1: there is no device to ask
 * @taint: the kernel's taint
 * @kmsg: reads the log from there on
 */
struct oracle {
	long long pins;
	long long charged;
	long long taint;
	int kmsg;
};

void oracle_begin(struct oracle *oracle);

/* Says what is wrong. @faults: reports of the IOMMU are not. @leaks: nor are so many pages that stay pinned. */
bool oracle_end(struct oracle *oracle, bool faults, unsigned int leaks);

#endif
