// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory of kernels, whose elements are loaded and stored, and not referred to.

use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::sync::atomic::{
    AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64, AtomicU8, Ordering::Relaxed,
};

use crate::thread::csr;

/// Plain data, as `pinmap::Element`: numbers, arrays of them, and structs that are declared with
/// [`element!`](crate::element).
///
/// # Safety
///
/// Any bytes must be a valid value, all bytes of a value must be initialised (no padding), and the
/// type must have neither references nor interior mutability. Its alignment is at most 16.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no plain data that a device can share",
    note = "declare a struct with `pinmap_kernel::element!`"
)]
pub unsafe trait Element: Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($type:ty)*) => { $(
        // SAFETY: A number has no padding, and any bytes are one.
        unsafe impl Element for $type {}
    )* };
}

// Not `usize`: on the other side it may be shorter.
elements! { u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 }

// SAFETY: An array is its elements, without anything in between.
unsafe impl<T: Element, const N: usize> Element for [T; N] {}

/// An element on which there are atomic operations.
///
/// # Safety
///
/// `Atomic` is the atomic type of that size.
pub unsafe trait Integer: Element {
    /// The atomic type.
    type Atomic: 'static;
}

macro_rules! integers {
    ($($type:ty: $atomic:ty,)*) => { $(
        // SAFETY: The atomic type of that size.
        unsafe impl Integer for $type {
            type Atomic = $atomic;
        }
    )* };
}

integers! { u32: AtomicU32, u64: AtomicU64, i32: AtomicI32, i64: AtomicI64, }

/// Compiles for elements only.
#[doc(hidden)]
pub const fn is_element<T: Element>() {}

/// Declares structs of plain data, as `pinmap::element!`, with the same checks: a field need not
/// have the type that it has in the program.
#[macro_export]
macro_rules! element {
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_visibility:vis $field:ident: $field_type:ty),*
            $(,)?
        }
    )+) => { $(
        $(#[$meta])*
        #[derive(Clone, Copy)]
        #[repr(C)]
        $visibility struct $name {
            $($(#[$field_meta])* $field_visibility $field: $field_type,)*
        }
        const _: () = {
            // An attribute may have removed a field, added one, or given one another type.
            #[allow(dead_code)]
            fn fields(value: $name) {
                let $name { $($field,)* } = value;
                $(let _: $field_type = $field;)*
            }
            $($crate::is_element::<$field_type>();)*
            let end = 0;
            $(
                ::core::assert!(
                    ::core::mem::offset_of!($name, $field) == end,
                    "the struct has padding"
                );
                let end = end + ::core::mem::size_of::<$field_type>();
            )*
            ::core::assert!(end == ::core::mem::size_of::<$name>(), "the struct has padding");
            ::core::assert!(::core::mem::align_of::<$name>() <= 16, "the alignment is too large");
        };
        // SAFETY: All fields are elements, and there is nothing between them.
        unsafe impl $crate::Element for $name {}
    )+ };
}

macro_rules! units {
    ($($size:literal: $word:ty, $atomic:ident;)*) => {
        /// Loads an element by atomic loads, each as long as its alignment, and at most 8 bytes.
        ///
        /// # Safety
        ///
        /// The element is there, aligned, and accessed by atomics only.
        unsafe fn load<T: Element>(from: *const T) -> T {
            let mut value = MaybeUninit::<T>::uninit();
            match align_of::<T>() {
                $($size => for unit in 0..size_of::<T>() / size_of::<$word>() {
                    let to = value.as_mut_ptr().cast::<$word>();
                    // SAFETY: Inside of the element, for its size is a multiple of its alignment.
                    unsafe {
                        let from = from.cast_mut().cast::<$word>().add(unit);
                        to.add(unit).write($atomic::from_ptr(from).load(Relaxed));
                    }
                },)*
                _ => unreachable!(),
            }
            // SAFETY: All bytes have been written, and any bytes are an element.
            unsafe { value.assume_init() }
        }

        /// Stores an element, as [`load`] loads it.
        ///
        /// # Safety
        ///
        /// As for [`load`]; the element can be written.
        unsafe fn store<T: Element>(to: *mut T, value: T) {
            match align_of::<T>() {
                $($size => for unit in 0..size_of::<T>() / size_of::<$word>() {
                    // SAFETY: As for `load`; all bytes of an element are initialised.
                    unsafe {
                        let word = (&raw const value).cast::<$word>().add(unit).read();
                        $atomic::from_ptr(to.cast::<$word>().add(unit)).store(word, Relaxed);
                    }
                },)*
                _ => unreachable!(),
            }
        }
    };
}

units! {
    1: u8, AtomicU8;
    2: u16, AtomicU16;
    4: u32, AtomicU32;
    8: u64, AtomicU64;
    16: u64, AtomicU64;
}

/// Apart, so that a thread that finds its element saves no registers for this.
#[cold]
#[inline(never)]
#[track_caller]
fn no_element(index: usize, len: usize) -> ! {
    panic!("there is no element {index}: the slice has {len}")
}

/// Elements that a kernel reads.
pub struct DeviceSlice<'a, T> {
    start: *const T,
    len: usize,
    memory: PhantomData<&'a T>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// The elements that a launch passes to this thread.
    ///
    /// # Safety
    ///
    /// As long as `here` lives, the memory is there, aligned, and accessed by atomics only.
    #[doc(hidden)]
    pub unsafe fn new(_here: &'a (), start: *const T, len: usize) -> Self {
        Self {
            start,
            len,
            memory: PhantomData,
        }
    }

    /// Number of elements.
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    #[track_caller]
    fn at(self, index: usize) -> *const T {
        if index >= self.len {
            no_element(index, self.len);
        }
        // SAFETY: Inside of the slice.
        unsafe { self.start.add(index) }
    }

    /// Loads an element. Panics if there is none.
    #[track_caller]
    pub fn get(self, index: usize) -> T {
        // SAFETY: By the promise of `new`.
        unsafe { load(self.at(index)) }
    }
}

/// Elements that a kernel reads and writes, and the other threads as well.
pub struct DeviceSliceMut<'a, T>(DeviceSlice<'a, T>);

impl<'a, T> Deref for DeviceSliceMut<'a, T> {
    type Target = DeviceSlice<'a, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// The elements that a launch passes to this thread.
    ///
    /// # Safety
    ///
    /// As for [`DeviceSlice::new`]; they can be written.
    #[doc(hidden)]
    pub unsafe fn new(here: &'a (), start: *mut T, len: usize) -> Self {
        // SAFETY: As the caller promises.
        Self(unsafe { DeviceSlice::new(here, start, len) })
    }

    /// Stores an element. Panics if there is none.
    #[track_caller]
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: By the promise of `new`.
        unsafe { store(self.at(index).cast_mut(), value) }
    }

    /// Returns an element for atomic operations. Panics if there is none.
    #[track_caller]
    pub fn atomic(&self, index: usize) -> &'a T::Atomic
    where
        T: Integer,
    {
        // SAFETY: By the promise of `new`; an atomic has the size and alignment of its number.
        unsafe { &*self.at(index).cast() }
    }
}

/// Elements that the threads of a block share, `N` of them. They are not cleared: first they hold
/// anything.
pub struct Shared<'a, T, const N: usize>(DeviceSliceMut<'a, T>);

impl<'a, T, const N: usize> Deref for Shared<'a, T, N> {
    type Target = DeviceSliceMut<'a, T>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'a, T: Element, const N: usize> Shared<'a, T, N> {
    /// The elements from byte `offset` of the block's memory on. Panics if they are not in it.
    ///
    /// # Safety
    ///
    /// No other elements are there. `offset` is a multiple of 16.
    #[doc(hidden)]
    pub unsafe fn new(here: &'a (), offset: usize) -> Self {
        let (end, len) = (offset.checked_add(size_of::<[T; N]>()), csr!("0xcd0"));
        if end.is_none_or(|end| end as u64 > len) {
            panic!("blocks of the launch share {len} bytes, which is less than the kernel takes");
        }
        let start = csr!("0xccf") as usize + offset;
        // SAFETY: The memory is there as long as the block; it begins at a multiple of 16.
        Self(unsafe { DeviceSliceMut::new(here, start as *mut T, N) })
    }
}
