/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The PCI functions for the tests (QEMU's edu; where there is none, the test GPU), and the driver's
 * hold on them, by sysfs.
 */
#ifndef TESTS_PCI_H
#define TESTS_PCI_H

#include "harness.h"

#define PCI_DRIVER "pinmap"

/* The most functions that a machine for tests has. */
enum { PCI_MOST = 8 };

/**
 * struct pci_device - one function
 * @bdf: domain:bus:device.function
 * @node: its device node; empty: the driver is not bound to it
 */
struct pci_device {
	char bdf[16];
	char node[32];
};

/* Finds the node of the function with this address. */
void pci_look(struct pci_device *device);

/*
 * Remembers where the functions are for programs that this one executes: looking for them takes
 * long.
 */
void pci_remember(void);

/* The n-th function, bound or not. */
bool pci_find(unsigned int index, struct pci_device *device);

/* The n-th function that the driver is bound to. */
bool pci_bound(unsigned int index, struct pci_device *device);

/* The n-th function that the driver is bound to; the test is skipped if there are not that many. */
struct pci_device need_device(unsigned int index);

/* The path of a file of the function in sysfs; a static buffer. */
const char *pci_path(const char *bdf, const char *file);

/* Whether the function has these ids. */
bool pci_is(const char *bdf, unsigned int vendor, unsigned int device);

/*
 * Finds a function with these ids that no driver has. One that a test has left with a driver, by a
 * driver_override, is taken from it.
 */
bool pci_spare(unsigned int vendor, unsigned int device, char bdf[16]);

/* Whether the bus lets devices reach each other's memory (scripts/vm --peers). */
bool pci_peers(void);
/* Skips the test where it does not. */
void need_peers(void);

/* Finds the addresses of all functions that the driver has; returns how many there are. */
unsigned int pci_driven(char bdfs[PCI_MOST][16]);

int try_pci_unbind(const char *bdf);
int try_pci_bind(const char *bdf);
#define pci_unbind(bdf) CHECK_OK(try_pci_unbind(bdf))
#define pci_bind(bdf) CHECK_OK(try_pci_bind(bdf))

/*
 * Gives the node of a function that was bound to the group of the tests' user, as a udev rule
 * would.
 */
void pci_adopt(const char *bdf);

/* Whether the function may be a bus master, from its configuration space. */
bool pci_is_master(const char *bdf);

/* Makes the function a bus master behind the driver's back. */
void pci_set_master(const char *bdf);

/* Gives all functions back to the driver, if it is loaded; returns how many it had lost. */
unsigned int pci_restore(void);

/*
 * Binds the driver's functions anew; returns whether that worked. A test that fails may leave a
 * device that is gone for the driver, though it is bound, or one that is in trouble.
 */
bool pci_renew(void);

#endif
