// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Has the test GPU add 1.0 to a million floats of this program, where they are.
 *
 * cc increment.c $(pkg-config --cflags --libs pinmap)
 */
#include <pinmap.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { COUNT = 1 << 20 };

int main(void)
{
	struct pinmap_device *gpu = pinmap_find_accelerator();
	struct pinmap_stream *stream = gpu ? pinmap_stream_create(gpu, NULL) : NULL;
	float *numbers = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), COUNT * sizeof(*numbers));
	struct pinmap_memory *memory;
	int i;

	for (i = 0; numbers && i < COUNT; i++)
		numbers[i] = (float)i;
	memory = stream && numbers ?
		 pinmap_register(gpu, numbers, COUNT * sizeof(*numbers), NULL) : NULL;
	if (!memory || pinmap_testgpu_increment_f32(stream, memory, 0, COUNT) ||
	    pinmap_stream_synchronize(stream, -1)) {
		fprintf(stderr, "%s\n", pinmap_last_error());
		return 1;
	}
	printf("%g, %g, ... %g\n", numbers[0], numbers[1], numbers[COUNT - 1]);
	pinmap_release(memory);
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
	free(numbers);
	return 0;
}
