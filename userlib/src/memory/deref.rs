// SPDX-License-Identifier: MIT OR Apache-2.0
//! Methods of all memory that dereferences to a slice of elements.

/// Implements what follows from [`Deref`](std::ops::Deref), for what can be read and what can be
/// written.
macro_rules! as_slice {
    (($($read:tt)*) ($($write:tt)*) $type:ty as $element:ty) => {
        impl<$($read)*> $type {
            /// The bytes of the elements.
            pub fn as_bytes(&self) -> &[u8] {
                crate::memory::element::bytes_of(self)
            }
        }

        impl<$($write)*> $type {
            /// The bytes of the elements, for instance to read a file into them.
            pub fn as_bytes_mut(&mut self) -> &mut [u8] {
                crate::memory::element::bytes_of_mut(self)
            }
        }

        impl<$($read)*> AsRef<[$element]> for $type {
            fn as_ref(&self) -> &[$element] {
                self
            }
        }

        impl<$($write)*> AsMut<[$element]> for $type {
            fn as_mut(&mut self) -> &mut [$element] {
                self
            }
        }

        impl<'a, $($read)*> IntoIterator for &'a $type {
            type Item = &'a $element;
            type IntoIter = std::slice::Iter<'a, $element>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter()
            }
        }

        impl<'a, $($write)*> IntoIterator for &'a mut $type {
            type Item = &'a mut $element;
            type IntoIter = std::slice::IterMut<'a, $element>;

            fn into_iter(self) -> Self::IntoIter {
                self.iter_mut()
            }
        }
    };
}
pub(crate) use as_slice;
