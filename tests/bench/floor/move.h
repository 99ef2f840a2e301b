/* SPDX-License-Identifier: GPL-2.0 */
#ifndef BENCH_FLOOR_KERNEL_MOVE_H
#define BENCH_FLOOR_KERNEL_MOVE_H

struct bench_floor_fault;
struct bench_floor_move;
struct iommu_domain;

int floor_fault(struct iommu_domain *domain, struct bench_floor_fault *fault);
int floor_move(struct bench_floor_move *move);
int floor_move_init(void);
void floor_move_exit(void);

#endif
