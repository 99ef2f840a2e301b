#include <pinmap.h>

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 1024 };

int main(void)
{
	struct pinmap_device *gpu = pinmap_find_accelerator();
	struct pinmap_stream *stream = pinmap_stream_create(gpu, NULL);
	float *numbers = aligned_alloc(4096, COUNT * sizeof(float));
	struct pinmap_memory *memory = NULL;

	for (int i = 0; numbers && i < COUNT; i++)
		numbers[i] = 1;
	if (numbers)
		memory = pinmap_register(gpu, numbers, COUNT * sizeof(float), NULL);
	/* Submitting returns at once; the device adds 1.0 to each number, twice. */
	if (pinmap_testgpu_increment_f32(stream, memory, 0, COUNT) ||
	    pinmap_testgpu_increment_f32(stream, memory, 0, COUNT) ||
	    pinmap_stream_synchronize(stream, -1)) {
		fprintf(stderr, "%s\n", pinmap_last_error());
		return 1;
	}
	printf("%g at the same address for both\n", numbers[COUNT - 1]);
	pinmap_release(memory);
	pinmap_stream_destroy(stream);
	pinmap_close(gpu);
	free(numbers);
	return 0;
}
