/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C functions for driver/sys/: NAME.c has those of NAME.rs. bindgen makes Rust of this file (see
 * Kbuild).
 *
 * Most of them do nothing but call a static inline function or a macro, or give a constant a name
 * that all kernels have. A few do more, since it takes types or constants for which there are no
 * bindings; the head of the file then says what and why.
 */
#ifndef PINMAP_HELPERS_H
#define PINMAP_HELPERS_H

#include <linux/types.h>
#include <linux/debugfs.h>
#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/iommu.h>
#include <linux/miscdevice.h>
#include <linux/pci.h>
#include <linux/pid.h>
#include <linux/pinmap.h>
#include <linux/scatterlist.h>
#include <linux/sched/user.h>
#include <linux/sysfs.h>

/* account.rs */
unsigned long pinmap_memlock_limit(void);
struct user_struct *pinmap_get_current_user(void);

/* attributes.rs */
enum { PINMAP_ATTRIBUTES = 16 };
void pinmap_attribute(u32 which, const char *name, bool writable);
const struct attribute_group **pinmap_attributes(
	int (*get)(struct miscdevice *misc, u32 which, u64 *number, const char **word),
	int (*set)(struct miscdevice *misc, u32 which, u32 value));

/* cache.rs */
int pinmap_combine_writes(struct page **pages, int count);
int pinmap_write_back(struct page **pages, int count);
bool pinmap_can_flush(void);
void pinmap_flush(void *address, unsigned int bytes);

/* clock.rs */
unsigned long pinmap_ns_to_jiffies(u64 ns);

/* debugfs.rs */
void pinmap_debug_begin(void);
void pinmap_debug_end(void);
struct dentry *pinmap_debug_directory(const char *name);
void pinmap_debug_file(struct dentry *directory, const char *name, void *data, const void *aux,
		       const struct file_operations *operations);

/* cgroup.rs */
u64 pinmap_memory_limit(struct mm_struct *mm);

/* dmem.rs */
struct dmem_cgroup_region;
struct dmem_cgroup_pool_state;
struct dmem_cgroup_region *pinmap_dmem_register(struct pci_dev *pdev, u64 bytes);
void pinmap_dmem_unregister(struct dmem_cgroup_region *region);
int pinmap_dmem_charge(struct dmem_cgroup_region *region, u64 bytes,
		       struct dmem_cgroup_pool_state **pool);
void pinmap_dmem_uncharge(struct dmem_cgroup_pool_state *pool, u64 bytes);

/* device_private.rs */
enum {
	PINMAP_VM_FAULT_OOM = VM_FAULT_OOM,
};
struct pinmap_device_pages;
struct pinmap_device_pages_ops {
	void (*freed)(void *data, unsigned long number);
	vm_fault_t (*bring_home)(void *data, struct vm_fault *vmf);
};
struct pinmap_device_pages *pinmap_device_pages_add(u64 bytes, int node,
						    const struct pinmap_device_pages_ops *ops,
						    void *data);
void pinmap_device_pages_remove(struct pinmap_device_pages *pages);
unsigned long pinmap_device_pages_first(const struct pinmap_device_pages *pages);
void pinmap_take_device_page(struct pinmap_device_pages *pages, unsigned long index);
void pinmap_tell_lost(struct device *dev, unsigned long start, unsigned long last);

/* dmabuf.rs */
void pinmap_sg_set_run(struct scatterlist *sg, unsigned long pfn, unsigned int bytes);
void pinmap_dma_sync_for_cpu(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction);
void pinmap_dma_sync_for_device(struct device *dev, struct sg_table *table,
				enum dma_data_direction direction);
bool pinmap_dma_may_write(enum dma_data_direction direction);
unsigned int pinmap_dma_max_segment(struct device *dev);
void pinmap_dma_buf_invalidate(struct dma_buf *dma_buf, bool finish);
struct sg_table *pinmap_dma_buf_map_bar(struct dma_buf_attachment *attachment,
					struct pci_dev *pdev, u32 bar, struct phys_vec *range,
					enum dma_data_direction direction);
void pinmap_dma_buf_unmap_bar(struct dma_buf_attachment *attachment, struct sg_table *table,
			      enum dma_data_direction direction);

/* folios.rs */
struct page *pinmap_alloc_folio(unsigned int order, int node);
void *pinmap_kvmalloc_or_fail(size_t size);
bool pinmap_node_has_memory(u32 node);
unsigned long pinmap_total_pages(void);
unsigned int pinmap_huge_order(void);
void *pinmap_page_address(const struct page *page);

/* gate.rs */
void pinmap_clear_and_wake(u32 *word);
int pinmap_wait_for_zero(u32 *word);

/* gup.rs */
unsigned long pinmap_page_to_pfn(const struct page *page);
struct page *pinmap_pfn_to_page(unsigned long pfn);
void pinmap_put_page(struct page *page);
void pinmap_unpin_pages(struct page **pages, unsigned long count, bool dirty);
void pinmap_unpin_page(unsigned long pfn, bool dirty);
unsigned long pinmap_leaf_pages(unsigned long addr, struct page *page, bool write);
int pinmap_add_pins(struct page *page, unsigned int pins);
u32 pinmap_explain(struct vm_area_struct *vma, bool write);

/* hmm.rs */
struct pinmap_area {
	__u64 start;
	__u64 end;
	__u32 flags;
};
int pinmap_read_leaves_locked(struct mm_struct *mm, unsigned long start, unsigned int pages,
			      void *owner, unsigned long *leaves);
int pinmap_read_leaves(struct mm_struct *mm, unsigned long start, unsigned int pages, void *owner,
		       unsigned long *leaves);
int pinmap_fault_in(struct mm_struct *mm, unsigned long addr, bool write, unsigned int least,
		    unsigned int most);
u32 pinmap_explain_fault(struct mm_struct *mm, unsigned long addr, bool write, int error,
			 struct pinmap_area *area);
void pinmap_hold_page(unsigned long pfn);
void pinmap_let_go_of_page(unsigned long pfn);
bool pinmap_is_modified(unsigned long pfn);
bool pinmap_is_one_folio(unsigned long pfn, unsigned long count);
bool pinmap_is_same_folio(unsigned long a, unsigned long b);
void pinmap_mark_modified(unsigned long pfn);

/* iommu.rs */
enum { PINMAP_CACHE_COHERENCY = (__force u32)IOMMU_CAP_CACHE_COHERENCY };
struct pinmap_bus_run {
	__u64 start;
	__u64 length;
};
struct pinmap_lent_run {
	__u64 pfn;
	__u64 length;
};
#define PINMAP_LENT_RUNS 32
int pinmap_map_runs(struct iommu_domain *domain, u64 start, const struct pinmap_lent_run *runs,
		    unsigned int count, int prot);
u64 pinmap_unmap_runs(struct iommu_domain *domain, const struct pinmap_bus_run *runs,
		      unsigned int count);
void pinmap_gather_init(struct iommu_iotlb_gather *gather);
void pinmap_gather_sync(struct iommu_domain *domain, struct iommu_iotlb_gather *gather);
void pinmap_flush_all(struct iommu_domain *domain);
struct pinmap_region {
	__u64 start;
	__u64 last;
	__u32 kind;
	__u32 refused;
};
int pinmap_reserved_regions(struct device *dev, struct pinmap_region *regions, unsigned int room,
			    u64 *messages);
void pinmap_enforce_coherency(struct iommu_domain *domain);
int pinmap_get_msi_cookie(struct iommu_domain *domain, u64 base);

/* import.rs */
bool pinmap_dma_buf_is_writable(struct dma_buf *dma_buf);
enum dma_data_direction pinmap_dma_direction(bool write);
struct sg_table *pinmap_dma_buf_map(struct dma_buf_attachment *attachment,
				    enum dma_data_direction direction);
void pinmap_dma_buf_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			  enum dma_data_direction direction);
void pinmap_sg_dma(struct scatterlist *sg, struct pinmap_bus_run *part);
bool pinmap_is_ram(unsigned long pfn);
bool pinmap_dma_is_plain(struct device *dev);
void pinmap_dma_buf_get(struct dma_buf *dma_buf);
long pinmap_dma_buf_await(struct dma_buf *dma_buf);
bool pinmap_dma_buf_is_idle(struct dma_buf *dma_buf);

/* irq_eventfd.rs */
int pinmap_request_eventfd_irq(unsigned int irq, const char *name, void *slot);

/* irq_thread.rs */
/* The function that the thread of an interrupt calls. */
struct pinmap_irq_thread {
	void (*run)(void *data);
	void *data;
};
int pinmap_request_irq_thread(unsigned int irq, const char *name, struct pinmap_irq_thread *thread);

/* killable.rs */
struct pinmap_using {
	struct mem_cgroup *own, *before;
};
struct task_struct *pinmap_start_killable(void (*run)(void *data), void *data, const char *name);
void pinmap_forget_signals(void);
bool pinmap_use_mm(struct mm_struct *mm, struct pinmap_using *using);
void pinmap_unuse_mm(struct mm_struct *mm, struct pinmap_using *using);

/* memfd.rs */
int pinmap_memfd_begin(struct file *file, bool write);
bool pinmap_memfd_is_sealed(struct file *file);
void pinmap_memfd_end(struct file *file);
u64 pinmap_file_size(const struct file *file);
u64 pinmap_memfd_folio_size(struct file *file);
long pinmap_memfd_pin(struct file *file, u64 start, u64 last, struct folio **folios,
		      unsigned int room, u64 *inside);
unsigned long pinmap_folio_pfn(const struct folio *folio);
unsigned long pinmap_folio_pages(const struct folio *folio);
unsigned long pinmap_unpin_folio_of(unsigned long pfn, bool dirty);

/* migrate.rs */
enum { PINMAP_BATCH_PAGES = 512 };
/* Which pages are collected. */
enum { PINMAP_PAGES_OF_SYSTEM = 1, PINMAP_PAGES_OF_DEVICE = 2 };
struct pinmap_batch;
struct pinmap_batch_item {
	bool moves, empty;
	unsigned long pfn;
};
/* Where anonymous memory is in the reverse map: whoever maps it has it at this index. */
struct pinmap_rmap {
	unsigned long index;
	const void *root;
};
struct pinmap_home_fault {
	struct vm_area_struct *vma;
	struct page *page;
	unsigned long pfn, addr, start, end;
	bool by_device;
};
struct pinmap_batch *pinmap_batch_new(void);
unsigned long pinmap_migratable(struct mm_struct *mm, unsigned long addr, unsigned long end,
				struct vm_area_struct **vma);
bool pinmap_area_at(struct mm_struct *mm, unsigned long addr, struct pinmap_area *area,
		    struct vm_area_struct **vma);
bool pinmap_is_unshared(struct vm_area_struct *vma);
bool pinmap_may_be_huge(const struct vm_area_struct *vma);
bool pinmap_area_is_in(const struct vm_area_struct *vma, const struct mm_struct *mm);
bool pinmap_asks_user_space(struct vm_area_struct *vma);
bool pinmap_next_area(struct mm_struct *mm, unsigned long from, struct pinmap_area *area);
unsigned long pinmap_linear_address(struct vm_area_struct *vma, unsigned long addr);
bool pinmap_next_moved(struct mm_struct *mm, unsigned long from, struct pinmap_area *area,
		       u64 *linear);
int pinmap_mmap_lock_killable(struct mm_struct *mm);
bool pinmap_mmap_is_contended(struct mm_struct *mm);
int pinmap_batch_begin(struct pinmap_batch *batch, struct vm_area_struct *vma, unsigned long start,
		       unsigned long end, unsigned int sources, void *owner,
		       struct page *fault_page);
struct pinmap_batch_item pinmap_batch_item(const struct pinmap_batch *batch, unsigned int index);
void pinmap_batch_to(struct pinmap_batch *batch, unsigned int index, unsigned long pfn);
void pinmap_batch_commit(struct pinmap_batch *batch);
void pinmap_batch_end(struct pinmap_batch *batch);
unsigned long pinmap_bounce_new(unsigned int pages);
void pinmap_bounce_free(unsigned long pfn, unsigned int pages);
int pinmap_copy_page(unsigned long to, unsigned long from);
unsigned long pinmap_alloc_home(struct vm_area_struct *vma, unsigned long addr);
unsigned long pinmap_alloc_neighbours(struct vm_area_struct *vma);
void pinmap_drop_page(unsigned long pfn);
bool pinmap_rmap_of(unsigned long pfn, struct pinmap_rmap *rmap);
struct vm_area_struct *pinmap_find_rmap(struct mm_struct *mm, const struct pinmap_rmap *rmap,
					unsigned long from, struct pinmap_area *area,
					unsigned long *addr);
struct mm_struct *pinmap_next_process(int *number);
struct pinmap_home_fault pinmap_home_fault(struct vm_fault *vmf);
bool pinmap_home_fault_is_in(const struct pinmap_home_fault *fault, const struct mm_struct *mm);

/* miscdevice.rs */
unsigned long pinmap_get_unmapped_area(struct file *file, unsigned long addr, unsigned long length,
				       unsigned long pgoff, unsigned long flags);
int pinmap_take_number(void);
void pinmap_return_number(int number);

/* mmio.rs */
void __iomem *pinmap_ioremap_wc(u64 start, size_t bytes);
void pinmap_copy_page_from_io(unsigned long pfn, const void __iomem *from);

/* mmu_notifier.rs */
enum pinmap_notice {
	PINMAP_NOTICE_IGNORE = 0,
	PINMAP_NOTICE_CLEAR = 1,
	PINMAP_NOTICE_GONE = 2,
};
u32 pinmap_notice(const struct mmu_notifier_range *range);
bool pinmap_notice_blockable(const struct mmu_notifier_range *range);

/* mirror.rs */
enum { PINMAP_GRANULES = 32 };
void pinmap_read_pairs(const u32 *pairs, u32 *firsts);

/* p2pdma.rs */
void *pinmap_p2pdma_add(struct pci_dev *pdev, u32 bar, u64 bytes, u64 offset);
void pinmap_p2pdma_settle(void);
void pinmap_p2pdma_end(struct pci_dev *pdev, void *addr, u64 bytes);
unsigned long pinmap_p2pdma_pfn(void *addr);
unsigned long pinmap_p2pdma_idle(unsigned long pfn, unsigned long pages);

/* pci.rs */
struct pinmap_pci_bar {
	__u64 start;
	__u64 length;
	__u32 flags;
};
/* Where a function has its MSI-X structures: a BAR, and an offset in it. */
struct pinmap_pci_msix {
	__u32 vectors;
	__u32 table_bar;
	__u32 table_offset;
	__u32 pending_bar;
	__u32 pending_offset;
};
/*
 * The state that an error on the bus left a function in; and the answers that its driver may give.
 */
enum pinmap_bus {
	PINMAP_BUS_WORKS = (__force u32)pci_channel_io_normal,
	PINMAP_BUS_CAN_RECOVER = (__force u32)PCI_ERS_RESULT_CAN_RECOVER,
	PINMAP_BUS_DISCONNECT = (__force u32)PCI_ERS_RESULT_DISCONNECT,
};
void pinmap_pci_bar(struct pci_dev *pdev, u32 bar, struct pinmap_pci_bar *out);
int pinmap_pci_combine(struct pci_dev *pdev, u32 bar, bool on);
int pinmap_pci_msix(struct pci_dev *pdev, struct pinmap_pci_msix *msix);
void pinmap_pci_init_peers(struct pci_dev *pdev);
struct pinmap_dma_limits {
	__u64 mask;
	__u64 segment;
};
void pinmap_pci_exchange_limits(struct pci_dev *pdev, struct pinmap_dma_limits *limits);
bool pinmap_pci_can_reset(struct pci_dev *pdev);
bool pinmap_hibernation_failed(void);
void pinmap_runtime_begin(struct pci_dev *pdev);
void pinmap_runtime_end(struct pci_dev *pdev);
void pinmap_runtime_resume(struct pci_dev *pdev);
void pinmap_runtime_request_resume(struct pci_dev *pdev);
void pinmap_runtime_keep(struct pci_dev *pdev);
void pinmap_runtime_let_go(struct pci_dev *pdev, bool bound);
bool pinmap_pci_uses_ats(struct pci_dev *pdev);
void pinmap_runtime_busy(struct pci_dev *pdev);
void pinmap_runtime_ask(struct pci_dev *pdev);
u32 pinmap_runtime_delay(struct pci_dev *pdev);
bool pinmap_pci_reaches(struct pci_dev *pdev, struct pci_dev *peer);
int pinmap_pci_vectors(struct pci_dev *pdev);
int pinmap_pci_alloc_vectors(struct pci_dev *pdev, unsigned int wanted);
void pinmap_pci_ids(struct pci_dev *pdev, struct pinmap_info *info);

/* presence.rs */
enum {
	PINMAP_IN_NO_FILE = 0,
	PINMAP_IN_ITS_FILE = 1,
	PINMAP_FILE_BUSY = 2,
};
bool pinmap_page_is_anon(struct page *page);
bool pinmap_page_trylock(struct page *page);
void pinmap_page_unlock(struct page *page);
u32 pinmap_page_in_file(struct page *page);

/* process.rs */
enum { PINMAP_WHOLE_PROCESS = (__force u32)PIDTYPE_TGID };
int pinmap_process_number(struct pid *process);
enum {
	PINMAP_NAME = TASK_COMM_LEN,
};
bool pinmap_process_name(struct pid *process, char *name);
bool pinmap_process_memlock(struct pid *process, u64 *limit);

/* reclaim.rs */
void pinmap_reclaim_begin(void);
void pinmap_reclaim_end(void);

/* shmem.rs */
struct file *pinmap_shmem_new(u64 bytes);
u64 pinmap_shmem_room(void);
void pinmap_shmem_free(struct file *file, u64 first, u64 pages);
void *pinmap_shmem_get(struct file *file, u64 number, bool may_fail);
void pinmap_shmem_put(void *page, bool dirty);

/* sort.rs */
void pinmap_sort_pairs(u64 (*pairs)[2], size_t count);

/* task.rs */
bool pinmap_signal_pending(void);
bool pinmap_fatal_signal_pending(void);
void pinmap_assert_mmap_unlocked(void);
void pinmap_cond_resched(void);
unsigned long pinmap_task_size(void);
unsigned long pinmap_default_task_size(void);

/* coverage.rs */
void pinmap_kcov_start(void);
void pinmap_kcov_stop(void);

/* thread.rs */
struct task_struct *pinmap_run_thread(int (*run)(void *data), void *data, const char *name);

/* vma.rs */
enum {
	PINMAP_VM_FAULT_SIGBUS = VM_FAULT_SIGBUS,
	PINMAP_VM_FAULT_FALLBACK = VM_FAULT_FALLBACK,
	PINMAP_VM_FAULT_NOPAGE = VM_FAULT_NOPAGE,
};
void pinmap_vma_of_device(struct vm_area_struct *vma, bool write_combine);
void pinmap_vma_of_p2pdma(struct vm_area_struct *vma);
void pinmap_vma_of_file(struct vm_area_struct *vma);
void pinmap_vma_of_pages(struct vm_area_struct *vma, bool write_combine);
void pinmap_vma_forbid_writing(struct vm_area_struct *vma);
vm_fault_t pinmap_insert_page(struct vm_fault *vmf, struct page *page);
vm_fault_t pinmap_insert_frame(struct vm_fault *vmf, unsigned long pfn);
bool pinmap_huge_range(const struct vm_fault *vmf, unsigned int order, u64 *offset);
vm_fault_t pinmap_insert_huge(struct vm_fault *vmf, struct page *page);
vm_fault_t pinmap_insert_huge_pfn(struct vm_fault *vmf, unsigned long pfn);

/* wait.rs */
void pinmap_wait_queue_init(struct wait_queue_head *queue);
void pinmap_wake_up(struct wait_queue_head *queue);
enum pinmap_wait {
	PINMAP_WAIT_ALWAYS = 0,
	PINMAP_WAIT_KILLABLE = 1,
	PINMAP_WAIT_INTERRUPTIBLE = 2,
};
int pinmap_wait_event(struct wait_queue_head *queue, bool (*done)(void *data), void *data, u32 how);

/* work.rs */
enum pinmap_queue {
	PINMAP_QUEUE_WATCH = 0,
	PINMAP_QUEUE_END = 1,
	PINMAP_QUEUE_GUARD = 2,
	PINMAP_QUEUE_START = 3,
	PINMAP_QUEUES = 4,
};
int pinmap_queues_begin(void);
void pinmap_queues_end(void);
struct workqueue_struct *pinmap_queue(u32 which);

/* trace.rs; the tracepoints are in trace.h */
enum pinmap_trace_what {
	PINMAP_TRACE_REGISTER = 0,
	PINMAP_TRACE_RELEASE = 1,
	PINMAP_TRACE_MAP = 2,
	PINMAP_TRACE_UNMAP = 3,
	PINMAP_TRACE_STALE = 4,
	PINMAP_TRACE_FAULT = 5,
	PINMAP_TRACE_FAULT_BEGIN = 6,
	PINMAP_TRACE_FAULT_SERVED = 7,
	PINMAP_TRACE_FAULT_FAILED = 8,
	PINMAP_TRACE_MIGRATE = 9,
	PINMAP_TRACE_COUNT = 10,
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
	__u64 pages;
	__u64 retries;
	__u32 domain;
	__u32 huge;
	__u32 access;
	__u32 code;
	__u32 reason;
	__u32 cause;
	__u32 rule;
	__s32 error;
	__u8 bus;
	__u8 devfn;
	__u8 home;
};
extern const int *const pinmap_trace_listeners[PINMAP_TRACE_COUNT];
void pinmap_trace_emit(u32 what, const struct pinmap_trace *trace);

#endif
