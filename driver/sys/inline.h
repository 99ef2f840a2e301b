/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What Rust cannot call: static inlines, macros and enum constants, behind functions with plain
 * names. bindgen reads this file (see Kbuild); inline.c defines the functions.
 */
#ifndef PINMAP_INLINE_H
#define PINMAP_INLINE_H

#include <linux/types.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/iommu.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/sched/user.h>
#include <pinmap.h>

/* pages */
unsigned long pinmap_page_to_pfn(const struct page *page);
struct page *pinmap_pfn_to_page(unsigned long pfn);
bool pinmap_page_is_anon(struct page *page);
bool pinmap_page_trylock(struct page *page);
void pinmap_page_unlock(struct page *page);
struct inode *pinmap_page_grab_inode(struct page *page);
bool pinmap_page_belongs_to(struct page *page, struct inode *inode);
bool pinmap_inode_trylock_shared(struct inode *inode);
void pinmap_inode_unlock_shared(struct inode *inode);
void pinmap_put_page(struct page *page);
unsigned long pinmap_leaf_pages(unsigned long addr, const struct page *page, bool write);
int pinmap_add_pins(struct page *page, unsigned int pins);

/* Why a page cannot be pinned: values of enum pinmap_fail_reason. The mmap lock is held. */
u32 pinmap_explain(struct vm_area_struct *vma, bool write);

/* current */
bool pinmap_fatal_signal_pending(void);
void pinmap_cond_resched(void);
void pinmap_sleep_ms(unsigned int ms);
struct workqueue_struct *pinmap_unbound_queue(void);
unsigned long pinmap_task_size(void);
unsigned long pinmap_memlock_limit(void);
struct user_struct *pinmap_get_current_user(void);

/* mmu notifiers */
enum pinmap_notice {
	PINMAP_NOTICE_IGNORE = 0,
	PINMAP_NOTICE_CLEAR = 1,
	PINMAP_NOTICE_GONE = 2,
};
u32 pinmap_notice(const struct mmu_notifier_range *range);
bool pinmap_notice_blockable(const struct mmu_notifier_range *range);
void pinmap_interval_set_seq(struct mmu_interval_notifier *interval, unsigned long seq);

/* scatterlists */
void pinmap_sg_set_run(struct scatterlist *sg, unsigned long pfn, unsigned int bytes);

/* iommu */
struct pinmap_region {
	__u64 start;
	__u64 last;
	__u32 kind;
	__u32 refused;
};
int pinmap_reserved_regions(struct device *dev, struct pinmap_region *regions, unsigned int room);
bool pinmap_is_coherent(struct device *dev);
void pinmap_enforce_coherency(struct iommu_domain *domain);

/* memory of the driver's own */
struct page *pinmap_alloc_folio(unsigned int order);
unsigned long pinmap_total_pages(void);
unsigned int pinmap_huge_order(void);
void *pinmap_page_address(const struct page *page);

/* virtual memory areas of device memory, and of the driver's own */
enum {
	PINMAP_VM_FAULT_SIGBUS = VM_FAULT_SIGBUS,
	PINMAP_VM_FAULT_FALLBACK = VM_FAULT_FALLBACK,
	PINMAP_VM_FAULT_NOPAGE = VM_FAULT_NOPAGE,
};
bool pinmap_vma_is_shared(const struct vm_area_struct *vma);
void pinmap_vma_of_device(struct vm_area_struct *vma, bool write_combine);
void pinmap_vma_of_pages(struct vm_area_struct *vma);
vm_fault_t pinmap_insert_page(struct vm_fault *vmf, struct page *page);
bool pinmap_huge_range(const struct vm_fault *vmf, unsigned int order, u64 *offset);
vm_fault_t pinmap_insert_huge(struct vm_fault *vmf, struct page *page);
unsigned long pinmap_get_unmapped_area(struct file *file, unsigned long addr, unsigned long length,
				       unsigned long pgoff, unsigned long flags);
const char *pinmap_device_name(const struct device *dev);

/* numbers of nodes */
int pinmap_take_number(void);
void pinmap_return_number(int number);

/* PCI */
struct pinmap_pci_bar {
	__u64 start;
	__u64 length;
	__u32 flags;
};
void pinmap_pci_bar(struct pci_dev *pdev, u32 bar, struct pinmap_pci_bar *out);
int pinmap_pci_combine(struct pci_dev *pdev, u32 bar, bool on);
int pinmap_pci_msix_hole(struct pci_dev *pdev, u32 bar, u64 *start, u64 *last);
bool pinmap_pci_can_reset(struct pci_dev *pdev);
int pinmap_pci_vectors(struct pci_dev *pdev);
int pinmap_pci_alloc_vectors(struct pci_dev *pdev, unsigned int wanted);
void pinmap_pci_ids(struct pci_dev *pdev, struct pinmap_info *info);
int pinmap_request_eventfd_irq(unsigned int irq, const char *name, void *slot);

/* What an interrupt's thread calls. */
struct pinmap_irq_thread {
	void (*run)(void *data);
	void *data;
};
int pinmap_request_irq_thread(unsigned int irq, const char *name, struct pinmap_irq_thread *thread);

/* kernel threads */
struct task_struct *pinmap_run_thread(int (*run)(void *data), void *data, const char *name);

/* time */
u64 pinmap_now_ns(void);
void pinmap_wmb(void);
void pinmap_sleep_us(unsigned long least, unsigned long most);
unsigned long pinmap_ns_to_jiffies(u64 ns);

#endif
