// SPDX-License-Identifier: MIT OR Apache-2.0
//! Executables in ELF files: what is where in memory, relocated, and the functions in it.

use std::fmt::Display;

use object::elf::{self, FileHeader64, ProgramHeader64, Sym64};
use object::read::elf::{FileHeader, ProgramHeader, Rela, SectionHeader, Sym, SymbolTable};
use object::LittleEndian;

use super::error::ProgramError;

/// How long an image may be in memory.
const LONGEST: u64 = 1 << 30;

/// A file that was looked into: nothing of it reaches beyond the image.
#[derive(Debug)]
pub(super) struct Elf<'f> {
    file: &'f [u8],
    header: &'f FileHeader64<LittleEndian>,
    /// The segments that are loaded.
    segments: Vec<&'f ProgramHeader64<LittleEndian>>,
    /// Where the pages begin that the program may write: behind all others.
    data: usize,
    len: usize,
}

/// A function.
#[derive(Debug)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    /// Address in the image.
    pub(crate) addr: u64,
    len: u64,
    /// Whether it is a kernel.
    pub(crate) global: bool,
}

impl Symbol {
    pub(crate) fn is(&self, name: &str) -> bool {
        self.global && self.name == name
    }

    /// The name without the types of parameters, which those of kernels in Rust have.
    pub(crate) fn short(&self) -> &str {
        self.name.split('(').next().unwrap_or_default()
    }

    pub(crate) fn covers(&self, addr: u64) -> bool {
        addr.checked_sub(self.addr).is_some_and(|at| at < self.len)
    }
}

fn refuse(cause: impl Display) -> ProgramError {
    ProgramError::Refused(format!("the file is no program for the device: {cause}"))
}

impl<'f> Elf<'f> {
    pub(super) fn parse(file: &'f [u8]) -> Result<Self, ProgramError> {
        let end = LittleEndian;
        let header = FileHeader64::<LittleEndian>::parse(file).map_err(refuse)?;
        header.endian().map_err(refuse)?;
        if header.e_machine.get(end) != elf::EM_RISCV {
            return Err(refuse("it is for another machine than RISC-V"));
        }
        if header.e_type.get(end) != elf::ET_DYN {
            return Err(refuse("it is not position independent (-Wl,-pie)"));
        }
        let segments = header.program_headers(end, file).map_err(refuse)?;
        if segments.iter().any(|it| it.p_type(end) == elf::PT_INTERP) {
            return Err(refuse("it is linked dynamically"));
        }
        let loaded = segments
            .iter()
            .filter(|it| it.p_type(end) == elf::PT_LOAD && it.p_memsz(end) != 0);
        let segments: Vec<_> = loaded.collect();
        let (mut code, mut data, mut len) = (0, u64::MAX, 0);
        for segment in &segments {
            let (start, bytes) = (segment.p_vaddr(end), segment.p_memsz(end));
            let last = start.checked_add(bytes).filter(|&last| last <= LONGEST);
            let last = last.ok_or_else(|| refuse("it is longer than 1 GiB"))?;
            let content = segment.data(end, file);
            let content = content.map_err(|()| refuse("it is cut off"))?;
            if content.len() as u64 > bytes {
                return Err(refuse("a segment is longer in the file than in memory"));
            }
            len = len.max(last);
            if segment.p_flags(end) & elf::PF_W == 0 {
                code = code.max(last);
            } else {
                let page = segment.p_align(end).max(1);
                data = data.min(start - start % page);
            }
        }
        if code == 0 {
            return Err(refuse("it has no code"));
        }
        if data < code {
            return Err(refuse("what it writes is in the pages of its code"));
        }
        Ok(Self {
            file,
            header,
            segments,
            data: data.min(len) as usize,
            len: len as usize,
        })
    }

    /// Length of the image.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where the pages begin that the program may write.
    pub(super) fn data(&self) -> usize {
        self.data
    }

    /// Makes the image as it is in memory at this address.
    pub(super) fn image(&self, base: u64) -> Result<Vec<u8>, ProgramError> {
        let end = LittleEndian;
        let mut image = vec![0; self.len];
        for segment in &self.segments {
            let content = segment.data(end, self.file);
            let content = content.map_err(|()| refuse("it is cut off"))?;
            image[segment.p_vaddr(end) as usize..][..content.len()].copy_from_slice(content);
        }
        let sections = self.header.sections(end, self.file).map_err(refuse)?;
        for section in sections.iter() {
            // Those of sections that are not loaded, such as debug information, do not matter.
            if section.sh_flags(end) & u64::from(elf::SHF_ALLOC) == 0 {
                continue;
            }
            let Some((relocations, _)) = section.rela(end, self.file).map_err(refuse)? else {
                continue;
            };
            for relocation in relocations {
                let kind = relocation.r_type(end, false);
                if kind != elf::R_RISCV_RELATIVE {
                    let name = "it has relocations other than R_RISCV_RELATIVE";
                    return Err(refuse(format!("{name}: number {kind}")));
                }
                let at = usize::try_from(relocation.r_offset(end)).ok();
                let word = at.and_then(|at| image.get_mut(at..)?.get_mut(..8));
                let word = word.ok_or_else(|| refuse("a relocation is outside of it"))?;
                let value = base.wrapping_add_signed(relocation.r_addend(end));
                word.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(image)
    }

    /// The table of all symbols, or that of the dynamic ones if it was stripped.
    fn table(&self) -> Result<SymbolTable<'f, FileHeader64<LittleEndian>>, ProgramError> {
        let end = LittleEndian;
        let sections = self.header.sections(end, self.file).map_err(refuse)?;
        let mut table = sections.symbols(end, self.file, elf::SHT_SYMTAB);
        if table.as_ref().is_ok_and(|table| table.is_empty()) {
            table = sections.symbols(end, self.file, elf::SHT_DYNSYM);
        }
        table.map_err(refuse)
    }

    /// Whether each launcher has variables of its own, as in `pinmap_opencl.c`.
    pub(super) fn has_variables_of_launchers(&self) -> Result<bool, ProgramError> {
        let table = self.table()?;
        let name = |symbol: &Sym64<_>| symbol.name(LittleEndian, table.strings());
        let mut names = table.iter().map(name);
        Ok(names.any(|name| name == Ok(b"pinmap_variables_of_launchers")))
    }

    /// The constants that tell the types of kernels in Rust, each with the name of its kernel.
    pub(super) fn types(&self) -> Result<Vec<(String, Vec<u8>)>, ProgramError> {
        let end = LittleEndian;
        let table = self.table()?;
        let mut all = Vec::new();
        for symbol in table.iter().filter(|it| it.st_type() == elf::STT_OBJECT) {
            let name = symbol.name(end, table.strings()).map_err(refuse)?;
            let name = String::from_utf8_lossy(name);
            let Some(kernel) = name.strip_prefix("types:") else {
                continue;
            };
            let (addr, len) = (symbol.st_value(end), symbol.st_size(end));
            let mut segments = self.segments.iter();
            let bytes = segments.find_map(|it| it.data_range(end, self.file, addr, len).ok()?);
            let bytes = bytes.ok_or_else(|| refuse("a constant is not in it"))?;
            all.push((kernel.to_owned(), bytes.to_vec()));
        }
        Ok(all)
    }

    /// The functions.
    pub(super) fn symbols(&self) -> Result<Vec<Symbol>, ProgramError> {
        let end = LittleEndian;
        let table = self.table()?;
        let is_function =
            |symbol: &&Sym64<_>| symbol.st_type() == elf::STT_FUNC && !symbol.is_undefined(end);
        let functions = table.iter().filter(is_function);
        functions
            .map(|symbol| {
                let name = symbol.name(end, table.strings()).map_err(refuse)?;
                let addr = symbol.st_value(end);
                if addr >= self.data as u64 {
                    return Err(refuse("a function is not in its code"));
                }
                Ok(Symbol {
                    name: String::from_utf8_lossy(name).into_owned(),
                    addr,
                    len: symbol.st_size(end),
                    global: symbol.st_bind() == elf::STB_GLOBAL,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &[u8]) -> String {
        Elf::parse(file).expect_err("refused").to_string()
    }

    /// A file with one segment, from address 0 on, of these flags and lengths.
    fn file(machine: u16, kind: u16, flags: u32, in_file: u64, in_memory: u64) -> Vec<u8> {
        let mut file = vec![0; 64 + 56];
        file[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0]);
        let mut put = |at: usize, bytes: &[u8]| file[at..][..bytes.len()].copy_from_slice(bytes);
        put(16, &kind.to_le_bytes());
        put(18, &machine.to_le_bytes());
        put(20, &1u32.to_le_bytes());
        put(32, &64u64.to_le_bytes());
        put(52, &64u16.to_le_bytes());
        put(54, &56u16.to_le_bytes());
        put(56, &1u16.to_le_bytes());
        put(64, &elf::PT_LOAD.to_le_bytes());
        put(68, &flags.to_le_bytes());
        put(96, &in_file.to_le_bytes());
        put(104, &in_memory.to_le_bytes());
        put(112, &0x1000u64.to_le_bytes());
        file
    }

    #[test]
    fn what_is_no_program_is_refused() {
        const CODE: u32 = elf::PF_R | elf::PF_X;
        assert!(text(b"").contains("no program for the device"));
        assert!(text(&file(62, 3, CODE, 8, 8)).contains("another machine"));
        assert!(text(&file(243, 2, CODE, 8, 8)).contains("position independent"));
        assert!(text(&file(243, 3, CODE, 9, 8)).contains("longer in the file"));
        assert!(text(&file(243, 3, CODE, 4096, 4096)).contains("cut off"));
        assert!(text(&file(243, 3, CODE, 8, u64::MAX)).contains("1 GiB"));
        assert!(text(&file(243, 3, elf::PF_W, 8, 8)).contains("no code"));
    }

    #[test]
    fn an_image_is_what_the_segments_say() {
        let file = file(243, 3, elf::PF_R | elf::PF_X, 8, 5000);
        let elf = Elf::parse(&file).expect("a program");
        assert_eq!((elf.len(), elf.data()), (5000, 5000));
        let image = elf.image(0x10000).expect("an image");
        assert_eq!((&image[..4], image[8]), (&b"\x7fELF"[..], 0));
        assert!(elf.symbols().expect("none").is_empty());
    }

    /// Bytes of `include_bytes!` are aligned only by chance.
    #[test]
    fn a_file_has_any_alignment() {
        let file = file(243, 3, elf::PF_R | elf::PF_X, 8, 5000);
        for offset in 0..8 {
            let moved = [&[0; 8][..offset], &file].concat();
            assert_eq!(Elf::parse(&moved[offset..]).expect("a program").len(), 5000);
        }
    }
}
