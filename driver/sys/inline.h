/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What Rust cannot call: static inlines, macros and enum constants, behind functions with plain
 * names. bindgen reads this file (see Kbuild); inline.c defines the functions.
 */
#ifndef PINMAP_INLINE_H
#define PINMAP_INLINE_H

#include <linux/types.h>
#include <linux/debugfs.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/iommu.h>
#include <linux/pci.h>
#include <linux/pid.h>
#include <linux/scatterlist.h>
#include <linux/sched/user.h>
#include <pinmap.h>

/* pages */
unsigned long pinmap_page_to_pfn(const struct page *page);
struct page *pinmap_pfn_to_page(unsigned long pfn);
bool pinmap_page_is_anon(struct page *page);
bool pinmap_page_trylock(struct page *page);
void pinmap_page_unlock(struct page *page);
enum {
	PINMAP_IN_NO_FILE = 0,
	PINMAP_IN_ITS_FILE = 1,
	PINMAP_FILE_BUSY = 2,
};
u32 pinmap_page_in_file(struct page *page);
void pinmap_put_page(struct page *page);
unsigned long pinmap_leaf_pages(unsigned long addr, struct page *page, bool write);
int pinmap_add_pins(struct page *page, unsigned int pins);

/* files in memory */
int pinmap_memfd_begin(struct file *file, bool write);
void pinmap_memfd_end(struct file *file);
bool pinmap_memfd_is_sealed(struct file *file);
u64 pinmap_file_size(const struct file *file);
u64 pinmap_memfd_folio_size(struct file *file);
long pinmap_memfd_pin(struct file *file, u64 start, u64 last, struct folio **folios, unsigned int room,
		      u64 *inside);
unsigned long pinmap_folio_pfn(const struct folio *folio);
unsigned long pinmap_folio_pages(const struct folio *folio);
unsigned long pinmap_unpin_folio_of(unsigned long pfn, bool dirty);

/* Whether a function can be reached that an error on its bus is about, and what its driver answers. */
enum pinmap_bus {
	PINMAP_BUS_WORKS = (__force u32)pci_channel_io_normal,
	PINMAP_BUS_CAN_RECOVER = (__force u32)PCI_ERS_RESULT_CAN_RECOVER,
	PINMAP_BUS_DISCONNECT = (__force u32)PCI_ERS_RESULT_DISCONNECT,
};

/* Why a page cannot be pinned: values of enum pinmap_fail_reason. The mmap lock is held. */
u32 pinmap_explain(struct vm_area_struct *vma, bool write);
/* The same for a range of the current task: the first address that cannot be, or PINMAP_FAIL_NONE. */
u32 pinmap_survey(unsigned long start, unsigned long last, bool write, u64 *addr);

/* current */
bool pinmap_fatal_signal_pending(void);
void pinmap_clear_and_wake(u32 *word);
int pinmap_wait_for_zero(u32 *word);
bool pinmap_signal_pending(void);
void pinmap_cond_resched(void);
void pinmap_reclaim_begin(void);
void pinmap_reclaim_end(void);
gfp_t pinmap_gfp_for_another(void);
void pinmap_beside(void (*own)(void *), void *own_data, void (*other)(void *), void *other_data);
unsigned long pinmap_task_size(void);
unsigned long pinmap_memlock_limit(void);
struct user_struct *pinmap_get_current_user(void);

/* work queues of the driver's own */
enum pinmap_queue {
	PINMAP_QUEUE_WATCH = 0,
	PINMAP_QUEUE_END = 1,
	PINMAP_QUEUE_MAP = 2,
	PINMAP_QUEUE_GUARD = 3,
	PINMAP_QUEUES = 4,
};
int pinmap_queues_begin(void);
void pinmap_queues_end(void);
struct workqueue_struct *pinmap_queue(u32 which);

/* waiting */
void pinmap_gate_init(struct wait_queue_head *queue);
void pinmap_gate_tell(struct wait_queue_head *queue);
int pinmap_gate_wait(struct wait_queue_head *queue, bool (*done)(void *data), void *data, bool killable);

/* mmu notifiers */
enum pinmap_notice {
	PINMAP_NOTICE_IGNORE = 0,
	PINMAP_NOTICE_CLEAR = 1,
	PINMAP_NOTICE_GONE = 2,
};
u32 pinmap_notice(const struct mmu_notifier_range *range);
bool pinmap_notice_blockable(const struct mmu_notifier_range *range);

/* scatterlists */
void pinmap_sg_set_run(struct scatterlist *sg, unsigned long pfn, unsigned int bytes);
struct scatterlist *pinmap_sg_next(struct scatterlist *sg);
void pinmap_dma_unmap_sgtable(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction);
void pinmap_dma_sync_for_cpu(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction);
void pinmap_dma_sync_for_device(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction);
unsigned int pinmap_dma_max_segment(struct device *dev);
bool pinmap_dma_may_write(enum dma_data_direction direction);

/* dma-bufs */
void pinmap_dma_buf_invalidate(struct dma_buf *dma_buf);

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
struct page *pinmap_alloc_folio(unsigned int order, int node);
void *pinmap_kvmalloc_or_fail(size_t size);
bool pinmap_node_has_memory(u32 node);
int pinmap_combine_writes(struct page **pages, int count);
int pinmap_write_back(struct page **pages, int count);
bool pinmap_can_flush(void);
void pinmap_flush(void *address, unsigned int bytes);
unsigned long pinmap_total_pages(void);
unsigned int pinmap_huge_order(void);
void *pinmap_page_address(const struct page *page);

/* virtual memory areas of device memory, and of the driver's own */
enum {
	PINMAP_VM_FAULT_SIGBUS = VM_FAULT_SIGBUS,
	PINMAP_VM_FAULT_FALLBACK = VM_FAULT_FALLBACK,
};
bool pinmap_vma_is_shared(const struct vm_area_struct *vma);
void pinmap_vma_of_device(struct vm_area_struct *vma, bool write_combine);
void pinmap_vma_of_file(struct vm_area_struct *vma);
void pinmap_vma_of_pages(struct vm_area_struct *vma, bool write_combine);
void pinmap_vma_forbid_writing(struct vm_area_struct *vma);
vm_fault_t pinmap_insert_page(struct vm_fault *vmf, struct page *page);
bool pinmap_huge_range(const struct vm_fault *vmf, unsigned int order, u64 *offset);
vm_fault_t pinmap_insert_huge(struct vm_fault *vmf, struct page *page);
vm_fault_t pinmap_insert_huge_pfn(struct vm_fault *vmf, unsigned long pfn);
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

/* sleepable RCU */
struct srcu_struct *pinmap_srcu_new(void);
void pinmap_srcu_free(struct srcu_struct *domain);
int pinmap_srcu_lock(struct srcu_struct *domain);
void pinmap_srcu_unlock(struct srcu_struct *domain, int index);
void pinmap_srcu_wait(struct srcu_struct *domain);

/* kernel threads */
struct task_struct *pinmap_run_thread(int (*run)(void *data), void *data, const char *name);

/* time */
u64 pinmap_now_ns(void);
void pinmap_wmb(void);
void pinmap_sleep_us(unsigned long least, unsigned long most);
unsigned long pinmap_ns_to_jiffies(u64 ns);

/* processes, whether or not they still run */
struct pid *pinmap_get_current_process(void);
int pinmap_process_number(struct pid *process);
bool pinmap_process_memlock(struct pid *process, u64 *limit);

/* debugfs: a directory for each function */
void pinmap_debug_begin(void);
void pinmap_debug_end(void);
struct dentry *pinmap_debug_files(const char *directory, const char *name, void *data,
				  const struct file_operations *operations);

/* tracepoints: see trace.h */
enum pinmap_trace_what {
	PINMAP_TRACE_REGISTER = 0,
	PINMAP_TRACE_RELEASE = 1,
	PINMAP_TRACE_MAP = 2,
	PINMAP_TRACE_UNMAP = 3,
	PINMAP_TRACE_STALE = 4,
	PINMAP_TRACE_FAULT = 5,
};
struct pinmap_trace {
	__u64 context;
	__u64 handle;
	__u64 addr;
	__u64 device_addr;
	__u64 bytes;
	__u64 runs;
	__u64 flushes;
	__u64 ns;
	__u64 index;
	__u32 domain;
	__u32 huge;
	__u32 access;
	__u32 code;
	__u8 bus;
	__u8 devfn;
};
bool pinmap_trace_enabled(u32 what);
void pinmap_trace_emit(u32 what, const struct pinmap_trace *trace);

#endif
