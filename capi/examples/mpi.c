// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Heat in a plate, computed by the accelerators of several machines. Each rank has some rows of the
 * plate, and its accelerator computes them where they are: in host memory, which MPI sends and
 * receives from as it is. In each step the first and the last row come first. While they are on
 * their way to the neighbours, the accelerator computes the rest.
 *
 * The test GPU has no kernel for it, but y = a * x + y, on the plate moved by one row or column, is
 * enough. To the left of a row's first cell is the last one of the row above.
 *
 * With --staged the plate is in the accelerators' own memory, as without pinmap, and rows are
 * copied to and from host memory to be sent. Rank 0 compares the result with what it computes by
 * itself.
 *
 * mpicc mpi.c $(pkg-config --cflags --libs pinmap)
 * mpirun -n 4 ./a.out [--rows N] [--columns N] [--steps N] [--staged]
 */
#include <mpi.h>
#include <pinmap.h>

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UP, DOWN, SIDES };

static size_t rows = 512, columns = 4096, steps = 8;
static int staged;

/* A rank's part of the plate: its rows, with one above and one below of the neighbours'. */
struct plate {
	MPI_Comm comm;
	int rank, ranks;
	size_t rows;
	/* The state now, and the next one. */
	struct pinmap_memory *state[2];
	/* With --staged the rows that go and those that come, and in the end all. */
	struct pinmap_memory *going[SIDES], *coming[SIDES], *all;
	/* The first and the last row; the rest. */
	struct pinmap_stream *edge, *inner;
	struct pinmap_stream_event *edge_done, *inner_done;
	uint64_t sent, copied;
	unsigned int exchanges, overlapped;
	double waited;
};

static void fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: %s\n", what, why);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *need(void *handle, const char *what)
{
	if (!handle)
		fail(what, pinmap_last_error());
	return handle;
}

static int check(int result, const char *what)
{
	if (result < 0)
		fail(what, pinmap_last_error());
	return result;
}

static size_t bytes(size_t count_of_rows)
{
	return count_of_rows * columns * sizeof(float);
}

static struct plate plate_new(const struct pinmap_device *gpu, MPI_Comm comm, int in_vram)
{
	struct plate plate = { .comm = comm };

	MPI_Comm_rank(comm, &plate.rank);
	MPI_Comm_size(comm, &plate.ranks);
	plate.rows = rows / (size_t)plate.ranks;
	for (int i = 0; i < 2; i++)
		plate.state[i] = need(in_vram ? pinmap_alloc_vram(gpu, bytes(plate.rows + 2)) :
						pinmap_alloc(gpu, bytes(plate.rows + 2), NULL),
				      "allocating the plate");
	for (int i = 0; in_vram && i < SIDES; i++) {
		plate.going[i] = need(pinmap_alloc(gpu, bytes(1), NULL), "allocating a row");
		plate.coming[i] = need(pinmap_alloc(gpu, bytes(1), NULL), "allocating a row");
	}
	plate.edge = need(pinmap_stream_create(gpu, NULL), "making a stream");
	plate.inner = need(pinmap_stream_create(gpu, NULL), "making a stream");
	plate.edge_done = need(pinmap_event_create(gpu), "making an event");
	plate.inner_done = need(pinmap_event_create(gpu), "making an event");
	return plate;
}

static void plate_end(struct plate *plate)
{
	for (int i = 0; i < 2; i++) {
		check(pinmap_release(plate->state[i]), "releasing");
		check(pinmap_release(plate->going[i]), "releasing");
		check(pinmap_release(plate->coming[i]), "releasing");
	}
	check(pinmap_release(plate->all), "releasing");
	pinmap_event_destroy(plate->edge_done);
	pinmap_event_destroy(plate->inner_done);
	pinmap_stream_destroy(plate->edge);
	pinmap_stream_destroy(plate->inner);
}

/* Some rows, from number @first on, where 0 is the neighbour's above. */
static void compute(struct plate *plate, const struct pinmap_stream *stream, size_t step,
		    size_t first, size_t count)
{
	const struct pinmap_memory *now = plate->state[step % 2], *next = plate->state[!(step % 2)];
	size_t at = bytes(first), cells = count * columns;
	const struct {
		float part;
		size_t from;
	} terms[] = {
		{ 0.6f, at },
		{ 0.1f, at - bytes(1) },
		{ 0.1f, at + bytes(1) },
		{ 0.1f, at - sizeof(float) },
		{ 0.1f, at + sizeof(float) },
	};

	check(pinmap_stream_fill(stream, next, at, cells, 0, sizeof(float)), "submitting");
	for (size_t i = 0; i < sizeof(terms) / sizeof(terms[0]); i++)
		check(pinmap_testgpu_saxpy(stream, terms[i].part, now, terms[i].from, next, at,
					   cells),
		      "submitting");
}

/* The row of the next state that a side sends (its own), or gets (the neighbour's). */
static size_t row_at(const struct plate *plate, int side, int gets)
{
	if (side == UP)
		return bytes(gets ? 0 : 1);
	return bytes(gets ? plate->rows + 1 : plate->rows);
}

static int neighbour(const struct plate *plate, int side)
{
	int other = plate->rank + (side == UP ? -1 : 1);

	return other < 0 || other >= plate->ranks ? MPI_PROC_NULL : other;
}

/* Copies rows between the accelerator's memory and host memory. */
static void stage(struct plate *plate, const struct pinmap_memory *next, int gets)
{
	for (int side = 0; side < SIDES; side++) {
		size_t at = row_at(plate, side, gets);

		if (neighbour(plate, side) == MPI_PROC_NULL)
			continue;
		if (gets)
			check(pinmap_stream_copy(plate->edge, next, at, plate->coming[side], 0,
						 bytes(1)),
			      "copying a row");
		else
			check(pinmap_stream_copy(plate->edge, plate->going[side], 0, next, at,
						 bytes(1)),
			      "copying a row");
		plate->copied += bytes(1);
	}
}

/* Exchanges the first and the last row with the neighbours, while the accelerator computes. */
static void exchange(struct plate *plate, size_t step)
{
	const struct pinmap_memory *next = plate->state[!(step % 2)];
	int in_vram = plate->going[0] != NULL;
	MPI_Request requests[2 * SIDES];
	double begin;

	if (in_vram)
		stage(plate, next, 0);
	check(pinmap_stream_synchronize(plate->edge, -1), "waiting for the first and last row");
	begin = MPI_Wtime();
	for (int side = 0; side < SIDES; side++) {
		char *all = pinmap_address(next);
		void *going = in_vram ? pinmap_address(plate->going[side]) :
					all + row_at(plate, side, 0);
		void *coming = in_vram ? pinmap_address(plate->coming[side]) :
					 all + row_at(plate, side, 1);
		int other = neighbour(plate, side);

		/* A row that goes up is for the side below: the tag is the side that sends. */
		MPI_Irecv(coming, (int)columns, MPI_FLOAT, other, !side, plate->comm,
			  &requests[side]);
		MPI_Isend(going, (int)columns, MPI_FLOAT, other, side, plate->comm,
			  &requests[SIDES + side]);
		if (other != MPI_PROC_NULL)
			plate->sent += bytes(1);
	}
	MPI_Waitall(2 * SIDES, requests, MPI_STATUSES_IGNORE);
	plate->waited += MPI_Wtime() - begin;
	plate->exchanges++;
	if (check(pinmap_event_query(plate->inner_done), "the rest") == 0)
		plate->overlapped++;
	if (in_vram)
		stage(plate, next, 1);
}

/* Warm above the plate, cold in it and below. */
static void begin(struct plate *plate)
{
	for (int i = 0; i < 2; i++) {
		check(pinmap_stream_fill(plate->edge, plate->state[i], 0,
					 (plate->rows + 2) * columns, 0, sizeof(float)),
		      "submitting");
		/* 100.0f */
		if (plate->rank == 0)
			check(pinmap_stream_fill(plate->edge, plate->state[i], 0, columns,
						 0x42c80000, sizeof(float)),
			      "submitting");
	}
	check(pinmap_stream_synchronize(plate->edge, -1), "waiting");
}

static void run(struct plate *plate)
{
	begin(plate);
	for (size_t step = 0; step < steps; step++) {
		/* Each needs what the other one had computed in the step before. */
		check(pinmap_stream_wait_event(plate->edge, plate->inner_done), "submitting");
		check(pinmap_stream_wait_event(plate->inner, plate->edge_done), "submitting");
		compute(plate, plate->edge, step, 1, 1);
		compute(plate, plate->edge, step, plate->rows, 1);
		compute(plate, plate->inner, step, 2, plate->rows - 2);
		check(pinmap_stream_record(plate->edge, plate->edge_done), "submitting");
		check(pinmap_stream_record(plate->inner, plate->inner_done), "submitting");
		exchange(plate, step);
	}
	check(pinmap_stream_synchronize(plate->edge, -1), "waiting");
	check(pinmap_stream_synchronize(plate->inner, -1), "waiting");
}

/* The rank's rows in the end, in host memory. */
static const float *result(const struct pinmap_device *gpu, struct plate *plate)
{
	const struct pinmap_memory *state = plate->state[steps % 2];

	if (!plate->going[0])
		return (const float *)((char *)pinmap_address(state) + bytes(1));
	plate->all = need(pinmap_alloc(gpu, bytes(plate->rows), NULL), "allocating rows");
	check(pinmap_stream_copy(plate->edge, plate->all, 0, state, bytes(1), bytes(plate->rows)),
	      "copying rows");
	check(pinmap_stream_synchronize(plate->edge, -1), "waiting");
	return pinmap_address(plate->all);
}

/* Rank 0 computes the whole plate by itself, in host memory, and looks for differences. */
static int compare(const struct pinmap_device *gpu, const float *all)
{
	struct plate alone = plate_new(gpu, MPI_COMM_SELF, 0);
	const float *right;
	int same;

	run(&alone);
	right = result(gpu, &alone);
	same = !memcmp(all, right, bytes(rows));
	printf("%s: the first row is %g warm\n", same ? "as one rank computes it" : "WRONG",
	       (double)right[columns / 2]);
	plate_end(&alone);
	return same;
}

static void parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		size_t *number = !strcmp(argv[i], "--rows")    ? &rows :
				 !strcmp(argv[i], "--columns") ? &columns :
				 !strcmp(argv[i], "--steps")   ? &steps :
								 NULL;

		if (!strcmp(argv[i], "--staged"))
			staged = 1;
		else if (number && i + 1 < argc)
			*number = strtoul(argv[++i], NULL, 0);
		else
			columns = 0;
	}
}

int main(int argc, char **argv)
{
	struct pinmap_device *gpu;
	struct plate plate;
	float *all = NULL;
	int rank, ranks, same = 1;
	uint64_t sums[4], total[4];
	double took;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	parse(argc, argv);
	/* MPI counts cells by int. */
	if (!columns || !steps || rows > INT_MAX / columns || rows % (size_t)ranks ||
	    rows / (size_t)ranks < 3) {
		fprintf(stderr, "usage: mpi [--rows N] [--columns N] [--steps N] [--staged]; each "
				"rank has as many rows, and at least 3; all have less than 2^31 "
				"cells\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	gpu = need(pinmap_find_accelerator(), "looking for an accelerator");
	plate = plate_new(gpu, MPI_COMM_WORLD, staged);
	MPI_Barrier(MPI_COMM_WORLD);
	took = MPI_Wtime();
	run(&plate);
	MPI_Barrier(MPI_COMM_WORLD);
	took = MPI_Wtime() - took;
	sums[0] = plate.sent;
	sums[1] = plate.copied;
	sums[2] = plate.exchanges;
	sums[3] = plate.overlapped;
	MPI_Reduce(sums, total, 4, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%zu x %zu cells, %zu steps, %d ranks: %.3f s, %.3f s of them for rows\n",
		       rows, columns, steps, ranks, took, plate.waited);
		printf("sent: %llu bytes; copied to send and receive: %llu bytes\n",
		       (unsigned long long)total[0], (unsigned long long)total[1]);
		printf("exchanges that ended while kernels ran: %llu of %llu\n",
		       (unsigned long long)total[3], (unsigned long long)total[2]);
		all = malloc(bytes(rows));
		if (!all)
			fail("allocating the result", "out of memory");
	}
	MPI_Gather(result(gpu, &plate), (int)(plate.rows * columns), MPI_FLOAT, all,
		   (int)(plate.rows * columns), MPI_FLOAT, 0, MPI_COMM_WORLD);
	plate_end(&plate);
	if (rank == 0)
		same = compare(gpu, all);
	free(all);
	pinmap_close(gpu);
	MPI_Finalize();
	return !same;
}
