/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Beginnings of messages on every boot that look like complaints. */
"DMA-API: preallocated",
"DMA-API: debugging enabled",
