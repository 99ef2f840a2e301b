// SPDX-License-Identifier: MIT OR Apache-2.0
/* libpinmap: copies between the VRAM of two accelerators. */
#define _GNU_SOURCE
#include "capi.h"
#include "gpu.h"
#include "edu.h"

#include <stdlib.h>

enum { LENGTH = (3 << 20) + 4 };

/* Registered by its address, VRAM of one accelerator is memory of another one. */
TEST(vram_is_registered_with_another_device)
{
	struct pinmap_device *two = MADE(pinmap_open_pci(need_second_gpu()));
	struct pinmap_device *one = MADE(pinmap_open_pci(need_gpu()));
	struct pinmap_memory *vram = MADE(pinmap_alloc_vram(two, HUGE)), *peer, *mine;
	const char *way = getenv("PINMAP_PEERS");
	struct pinmap_stream *stream;

	if (!way || !*way) {
		REFUSED(pinmap_register(one, pinmap_address(vram), HUGE, NULL), EREMOTEIO, OTHER,
			"bus");
	} else {
		peer = MADE(pinmap_register(one, pinmap_address(vram), HUGE, NULL));
		mine = MADE(pinmap_alloc_vram(one, HUGE));
		stream = MADE(pinmap_stream_create(one, NULL));
		pattern_fill(pinmap_address(vram), HUGE, 9);
		DONE(pinmap_stream_copy(stream, mine, 0, peer, 0, HUGE));
		DONE(pinmap_stream_synchronize(stream, -1));
		CHECK(pattern_is(pinmap_address(mine), HUGE, 9));
		pinmap_stream_destroy(stream);
		DONE(pinmap_release(mine));
		DONE(pinmap_release(peer));
	}
	DONE(pinmap_release(vram));
	pinmap_close(one);
	pinmap_close(two);
}

/* By a stream of each, whether the bus lets them reach each other or not. */
TEST(vram_of_two_gpus_is_copied)
{
	struct pinmap_device *two = MADE(pinmap_open_pci(need_second_gpu()));
	struct pinmap_device *one = MADE(pinmap_open_pci(need_gpu()));
	struct pinmap_memory *a = MADE(pinmap_alloc_vram(one, LENGTH));
	struct pinmap_memory *b = MADE(pinmap_alloc_vram(two, LENGTH));
	struct pinmap_stream *streams[] = {
		MADE(pinmap_stream_create(one, NULL)),
		MADE(pinmap_stream_create(two, NULL)),
	};

	for (int i = 0; i < 2; i++) {
		pattern_fill(pinmap_address(a), LENGTH, (unsigned char)(i + 1));
		DONE(pinmap_stream_copy(streams[i], b, 0, a, 0, LENGTH));
		DONE(pinmap_stream_synchronize(streams[i], -1));
		CHECK(pattern_is(pinmap_address(b), LENGTH, (unsigned char)(i + 1)));
		pinmap_stream_destroy(streams[i]);
	}
	DONE(pinmap_release(a));
	DONE(pinmap_release(b));
	pinmap_close(one);
	pinmap_close(two);
}
