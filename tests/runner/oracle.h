/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The oracle: what must hold after every test, whatever the test does. */
#ifndef TESTS_ORACLE_H
#define TESTS_ORACLE_H

#include "harness.h"

/**
 * struct oracle - the kernel as it was before a test
 * @pins: pages pinned
 * @charged: bytes charged to root; -1: there is no device to ask
 * @taint: the kernel's taint
 * @lockdep: lockdep looks at every lock; it ends for good with the first thing that it finds
 * @quiet: the log had nothing to complain of between the test before and this one
 */
struct oracle {
	long long pins;
	long long charged;
	long long taint;
	bool lockdep;
	bool quiet;
};

void oracle_begin(struct oracle *oracle);

/*
 * Prints what is wrong. @faults: reports of the IOMMU are expected. @leaks: so many pages stay
 * pinned.
 */
bool oracle_end(struct oracle *oracle, bool faults, unsigned int leaks);

#endif
