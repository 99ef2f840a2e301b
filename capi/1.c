#include <pinmap.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	static char memory[4096] __attribute__((aligned(4096)));
	struct pinmap_device *device = pinmap_open(NULL);

	if (!device) {
		fprintf(stderr, "%s\n", pinmap_last_error());
		return 1;
	}
	if (!pinmap_register(device, memory + 1, 10, NULL) && errno == EINVAL)
		printf("%s\n", pinmap_last_error());
	pinmap_close(device);
	return pinmap_last_error_kind() != PINMAP_ERROR_KIND_INVALID_INPUT;
}
