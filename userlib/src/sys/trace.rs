// SPDX-License-Identifier: MIT OR Apache-2.0
//! Spans of calls that take time, with the feature `tracing`. Without it they cost nothing.

/// Begins a span of this crate, which ends with the block: its name, and its fields.
macro_rules! span {
    ($name:literal $(, $field:ident = $value:expr)* $(,)?) => {
        #[cfg(feature = "tracing")]
        let _span = tracing::debug_span!(target: "pinmap", $name $(, $field = $value)*).entered();
    };
}

pub(crate) use span;

#[cfg(all(test, feature = "tracing"))]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use crate::accelerator::Accelerator;
    use crate::device::Device;
    use crate::memory::allocation::Place;
    use crate::memory::buffer::Buffer;
    use crate::memory::raw::RawRegistration;
    use crate::memory::slice::tests::Fake;
    use crate::queue::{Queue, WhenFull};
    use crate::Access;

    /// The names of the spans that were entered, each with the names of its fields.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<(Vec<String>, Vec<String>)>>);

    impl Subscriber for Seen {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "pinmap"
        }

        fn new_span(&self, span: &Attributes<'_>) -> Id {
            let fields = span.metadata().fields().iter();
            let fields: Vec<_> = fields.map(|field| field.name()).collect();
            let mut seen = self.0.lock().expect("no panic");
            seen.0
                .push(format!("{}: {}", span.metadata().name(), fields.join(", ")));
            Id::from_u64(seen.0.len() as u64)
        }

        fn enter(&self, span: &Id) {
            let mut seen = self.0.lock().expect("no panic");
            let name = seen.0[span.into_u64() as usize - 1].clone();
            seen.1.push(name);
        }

        fn exit(&self, _: &Id) {}
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {}
    }

    /// The spans that a function enters.
    fn spans<T>(function: impl FnOnce() -> T) -> Vec<String> {
        let seen = Seen::default();
        tracing::subscriber::with_default(seen.clone(), function);
        let entered = &seen.0.lock().expect("no panic").1;
        entered.clone()
    }

    #[test]
    fn calls_that_take_time_have_spans() {
        let device = Device::fake();
        assert_eq!(
            spans(|| device.alloc::<u8>(1).map(drop)),
            ["allocate: len, vram"]
        );
        let buffer = Buffer::<u8>::new(4096).expect("memory");
        assert_eq!(
            spans(|| buffer.register(&device, Access::Read).map(drop)),
            ["register: addr, len, write"]
        );
        let made = || RawRegistration::made(&device, 1, 0x1000, 4096, None, Access::Read);
        // Dropping it tries again.
        assert_eq!(
            spans(|| made().release_now()),
            ["release: addr, len", "release: addr, len"]
        );
        let buffers = [4096, 8192].map(|len| Buffer::<u8>::new(len).expect("memory"));
        assert_eq!(
            spans(|| device.register_all(buffers, Access::Read).map(drop)),
            ["register_all: count"]
        );
        let memory = [0u8; 4096];
        let moved = || {
            Accelerator::fake()
                .prefetch(&memory[..], Place::Vram)
                .map(drop)
        };
        assert_eq!(spans(moved), ["prefetch: addr, len, vram"]);

        let mut queue = Queue::fake();
        let device = queue.handle().device().clone();
        let (from, mut to) = (Fake::of(&device, 0x1000), Fake::of(&device, 0x9000));
        assert_eq!(
            spans(|| queue.copy::<u64>(&from.slice(), &to.slice_mut(), WhenFull::Wait)),
            ["copy: queue, len", "submit: queue, packets"]
        );
        assert_eq!(
            spans(|| queue.fill::<u64>(&to.slice_mut(), 7, WhenFull::Wait)),
            ["submit: queue, packets"]
        );
        assert_eq!(
            spans(|| queue.handle().wait(9, Some(Duration::ZERO)).map(drop)),
            ["wait: queue, fence"]
        );
    }
}
