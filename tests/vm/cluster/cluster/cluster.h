/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Programs that run on two machines, as scripts/cluster boots them. */
#ifndef TESTS_CLUSTER_H
#define TESTS_CLUSTER_H

#include "harness.h"

/* Skips the test if this is the only machine. */
void need_second_node(void);

/* Runs a command, which must succeed, and returns what it prints. */
char *said(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The number behind a text in an output. */
double number_behind(const char *output, const char *text);

#endif
