/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Marks: instructions that do nothing, between which plugin.c writes down what is executed. An
 * emulator of x86-64 without the plugin, and a processor, take each for a NOP.
 */
#ifndef MARK_H
#define MARK_H

/* nopl 0x6e4d5042(%rax), nopl 0x6e4d5045(%rax) */
#define MARK_BEGIN 0x0f, 0x1f, 0x80, 0x42, 0x50, 0x4d, 0x6e
#define MARK_END 0x0f, 0x1f, 0x80, 0x45, 0x50, 0x4d, 0x6e

#define MARK_TEXT_(...) #__VA_ARGS__
#define MARK_TEXT(...) MARK_TEXT_(__VA_ARGS__)
/* mark(MARK_BEGIN), mark(MARK_END) */
#define mark(...) __asm__ volatile(".byte " MARK_TEXT(__VA_ARGS__) ::: "memory")

__attribute__((unused)) static const unsigned char mark_begin[] = { MARK_BEGIN };
__attribute__((unused)) static const unsigned char mark_end[] = { MARK_END };

#endif
