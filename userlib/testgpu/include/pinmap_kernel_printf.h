/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* printf in kernels, formatted by the thread; included by pinmap_kernel.h */

/* The text of a printf so far. One that is longer than this is several messages. */
struct pinmap_text {
	unsigned int len;
	char bytes[256];
};

__device__ void pinmap_flush(struct pinmap_text *text)
{
	if (text->len)
		pinmap_call(2, (uintptr_t)text->bytes, text->len);
	text->len = 0;
}

__device__ void pinmap_put(struct pinmap_text *text, char byte)
{
	if (text->len == sizeof(text->bytes))
		pinmap_flush(text);
	text->bytes[text->len++] = byte;
}

/* Writes a number, with at least so many digits and characters. */
__device__ void pinmap_put_number(struct pinmap_text *text, uint64_t number, unsigned int base,
				  const char *sign, int digits, int width, char fill)
{
	char all[64];
	int len = 0, signs = 0;

	for (; number || len < digits; number /= base)
		all[len++] = "0123456789abcdef"[number % base];
	while (sign[signs])
		signs++;
	for (int i = len + signs; fill == ' ' && i < width; i++)
		pinmap_put(text, ' ');
	for (int i = 0; i < signs; i++)
		pinmap_put(text, sign[i]);
	for (int i = len + signs; fill == '0' && i < width; i++)
		pinmap_put(text, '0');
	while (len--)
		pinmap_put(text, all[len]);
}

__device__ void pinmap_put_string(struct pinmap_text *text, const char *string, int most, int width)
{
	int len = 0;

	while ((most < 0 || len < most) && string[len])
		len++;
	for (int i = len; i < width; i++)
		pinmap_put(text, ' ');
	for (int i = 0; i < len; i++)
		pinmap_put(text, string[i]);
}

__device__ void pinmap_put_float(struct pinmap_text *text, double value, int digits, int width,
				 char fill)
{
	const char *sign = __builtin_signbit(value) ? "-" : "";
	uint64_t whole, part, scale = 1;
	int zeros = 0;
	double rest;

	if (value != value || value - value != 0) {
		const char *names[] = { "nan", "inf", "-inf" };

		pinmap_put_string(text, names[value == value ? 1 + (value < 0) : 0], -1, width);
		return;
	}
	value = value < 0 ? -value : value;
	for (; value >= 1e18; zeros++)
		value /= 10;
	for (int i = 0; i < digits; i++)
		scale *= 10;
	whole = (uint64_t)value;
	rest = (value - (double)whole) * (double)scale;
	part = (uint64_t)rest;
	rest -= (double)part;
	/* A half is rounded to an even digit, as elsewhere. */
	part += rest > 0.5 || (rest == 0.5 && ((digits ? part : whole) & 1));
	if (part >= scale) {
		part -= scale;
		whole++;
	}
	if (zeros)
		part = 0;
	width -= zeros + (digits ? digits + 1 : 0);
	pinmap_put_number(text, whole, 10, sign, 1, width, fill);
	while (zeros--)
		pinmap_put(text, '0');
	if (digits) {
		pinmap_put(text, '.');
		pinmap_put_number(text, part, 10, "", digits, 0, ' ');
	}
}

__device__ void pinmap_vprintf(const char *format, va_list arguments)
{
	struct pinmap_text text;

	text.len = 0;
	for (; *format; format++) {
		int width = 0, digits = -1, is_long = 0;
		char fill = ' ';

		if (*format != '%') {
			pinmap_put(&text, *format);
			continue;
		}
		if (*++format == '0')
			fill = *format++;
		for (; *format >= '0' && *format <= '9'; format++)
			width = 10 * width + (*format - '0');
		if (*format == '.')
			for (digits = 0, format++; *format >= '0' && *format <= '9'; format++)
				digits = 10 * digits + (*format - '0');
		digits = digits > 15 ? 15 : digits;
		for (; *format == 'l' || *format == 'z'; format++)
			is_long = 1;
		switch (*format) {
		case 'd':
		case 'i': {
			int64_t value = is_long ? va_arg(arguments, long) : va_arg(arguments, int);
			uint64_t size = value < 0 ? -(uint64_t)value : (uint64_t)value;

			pinmap_put_number(&text, size, 10, value < 0 ? "-" : "",
					  digits < 0 ? 1 : digits, width, fill);
			break;
		}
		case 'u':
		case 'x': {
			uint64_t value = is_long ? va_arg(arguments, unsigned long) :
						   va_arg(arguments, unsigned int);

			pinmap_put_number(&text, value, *format == 'x' ? 16 : 10, "",
					  digits < 0 ? 1 : digits, width, fill);
			break;
		}
		case 'p':
			pinmap_put_number(&text, (uintptr_t)va_arg(arguments, void *), 16, "0x", 1,
					  width, fill);
			break;
		case 'c':
			pinmap_put(&text, (char)va_arg(arguments, int));
			break;
		case 's':
			pinmap_put_string(&text, va_arg(arguments, const char *), digits, width);
			break;
		case 'e':
		case 'f':
		case 'g':
			pinmap_put_float(&text, va_arg(arguments, double), digits < 0 ? 6 : digits,
					 width, fill);
			break;
		case '%':
			pinmap_put(&text, '%');
			break;
		case 0:
			format--;
			break;
		default:
			pinmap_put(&text, '%');
			pinmap_put(&text, *format);
		}
	}
	pinmap_flush(&text);
}

/*
 * Prints to the standard output of the program, in the order in which the threads come here. Knows
 * %d %i %u %x %c %s %f %p %%, with the flag 0, a width, a precision and the lengths l, ll, z. (%e
 * and %g are written as %f is, with at most 15 digits.) Returns 0.
 */
__attribute__((__format__(__printf__, 1, 2), unused)) static int printf(const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	pinmap_vprintf(format, arguments);
	va_end(arguments);
	return 0;
}
