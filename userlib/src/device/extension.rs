// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place in a device where a layer above finds what it shares between its objects.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Shared state of a layer above, of whatever type, as long as somebody there keeps it.
///
/// The state keeps the device, so the device must not keep the state.
pub(crate) struct Extension(Mutex<Weak<dyn Any + Send + Sync>>);

impl Extension {
    /// Finds the state, if somebody keeps it.
    pub(crate) fn find<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.upgrade()?.downcast().ok()
    }

    /// Finds the state, or makes it.
    pub(crate) fn find_or_default<T: Any + Send + Sync + Default>(&self) -> Arc<T> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.upgrade().and_then(|found| found.downcast().ok());
        found.unwrap_or_else(|| {
            let new = Arc::new(T::default());
            let weak: Weak<T> = Arc::downgrade(&new);
            *known = weak;
            new
        })
    }
}

impl Default for Extension {
    fn default() -> Self {
        let none: Weak<()> = Weak::new();
        Self(Mutex::new(none))
    }
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Extension")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_keeps_is_made_anew() {
        let extension = Extension::default();
        assert!(extension.find::<Mutex<u32>>().is_none());
        let first = extension.find_or_default::<Mutex<u32>>();
        *first.lock().expect("no panic") = 7;
        let again = extension.find::<Mutex<u32>>().expect("it is kept");
        assert!(Arc::ptr_eq(&first, &again));
        drop((first, again));
        assert!(extension.find::<Mutex<u32>>().is_none());
        let anew = extension.find_or_default::<Mutex<u32>>();
        assert_eq!(*anew.lock().expect("no panic"), 0);
    }
}
