/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The kernel's log, read from a certain moment on. */
#ifndef TESTS_KMSG_H
#define TESTS_KMSG_H

#include "harness.h"

/* Opens the log for reading what is logged from now on. */
int kmsg_open(void);

/*
 * Reads the text and the number of the next line: 1; 0: there is none now; -EPIPE: lines were
 * overwritten before they were read.
 */
int kmsg_read(int kmsg, unsigned long long *sequence, char *line, size_t size);

/* Reads the text of the next line that was not overwritten; false: there is none now. */
bool kmsg_next(int kmsg, char *line, size_t size);

/* Waits for a line that contains @text. */
bool kmsg_wait(int kmsg, const char *text, unsigned int milliseconds);

/* Counts the lines that contain @text and are there now. */
unsigned int kmsg_count(int kmsg, const char *text);

/* Whether a line says that something is wrong with the kernel. */
bool kmsg_is_complaint(const char *line);

/* Whether a line says that a device was stopped by the IOMMU. */
bool kmsg_is_fault(const char *line);

/* Waits for a report of a fault by the IOMMU. */
bool kmsg_wait_fault(int kmsg, unsigned int milliseconds);

#endif
