// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bytes and file descriptors over a Unix socket.

use std::io::{self, Read, Write};
use std::mem::{size_of, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;

/// Most descriptors that come with one message.
pub(crate) const MAX_DESCRIPTORS: usize = 16;

/// Room for the control messages, aligned as they must be.
#[repr(C, align(8))]
struct Control([u8; 256]);

fn message(bytes: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = bytes;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    message
}

/// Fills `to` and collects the descriptors that come with the bytes. An end of the stream is an
/// error.
pub(crate) fn receive(stream: &UnixStream, to: &mut [u8]) -> io::Result<Vec<OwnedFd>> {
    let mut descriptors = Vec::new();
    let mut done = 0;
    while done < to.len() {
        let rest = &mut to[done..];
        let mut bytes = libc::iovec {
            iov_base: rest.as_mut_ptr().cast(),
            iov_len: rest.len(),
        };
        let mut control = Control([0; 256]);
        let mut message = message(&mut bytes, &mut control);
        // SAFETY: `message` points to `bytes` and `control`, which live on and have the lengths
        // given.
        let got =
            unsafe { libc::recvmsg(stream.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        match usize::try_from(got) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => done += got,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
        }
        collect(&message, &mut descriptors);
    }
    Ok(descriptors)
}

fn collect(message: &libc::msghdr, descriptors: &mut Vec<OwnedFd>) {
    // SAFETY: `message` is what recvmsg() filled; its control buffer is still there.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: not null, so a whole header that the kernel wrote.
        let (level, kind, length) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        if (level, kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: The macro only computes a length.
            let data = length - unsafe { libc::CMSG_LEN(0) } as usize;
            for i in 0..data / size_of::<RawFd>() {
                // SAFETY: the kernel wrote that many descriptors there; unaligned reads are allowed
                // for.
                let descriptor =
                    unsafe { ptr::read_unaligned(libc::CMSG_DATA(header).cast::<RawFd>().add(i)) };
                // SAFETY: a descriptor that came in a message is new, and the receiver's alone.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
        // SAFETY: both belong to the same message, as above.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
}

/// Fills `to` from the stream, where no descriptors can come.
pub(crate) fn read(mut stream: &UnixStream, to: &mut [u8]) -> io::Result<()> {
    stream.read_exact(to)
}

/// Sends all of `from`, and a descriptor with its first byte.
pub(crate) fn send(
    mut stream: &UnixStream,
    from: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let Some(descriptor) = descriptor else {
        return stream.write_all(from);
    };
    let mut bytes = libc::iovec {
        iov_base: from.as_ptr().cast_mut().cast(),
        iov_len: from.len(),
    };
    let mut control = Control([0; 256]);
    let mut message = message(&mut bytes, &mut control);
    let length = size_of::<RawFd>() as u32;
    // SAFETY: The macro only computes a length.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(length) } as usize;
    // SAFETY: the control buffer is bigger than CMSG_SPACE of one descriptor, so that the header
    // and its data are inside.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(length) as usize;
        ptr::write_unaligned(
            libc::CMSG_DATA(header).cast::<RawFd>(),
            descriptor.as_raw_fd(),
        );
    }
    let sent = loop {
        // SAFETY: as in receive(); sendmsg() does not write to the bytes, though its type would let
        // it.
        let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        match usize::try_from(sent) {
            Ok(sent) => break sent,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => continue,
                error => return Err(error),
            },
        }
    };
    stream.write_all(&from[sent..])
}
