// SPDX-License-Identifier: MIT OR Apache-2.0
//! The attributes of the crate `pinmap-kernel`, which documents them.
//!
//! A kernel is expanded twice, for the device and for the program. Both sides make of the same
//! parameters the name of the function in the file for the device, which has their types.

use proc_macro2::{Ident, Literal, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned, ToTokens};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Error, FnArg, GenericArgument, ItemFn, Pat, PathArguments, Result, ReturnType, Type};

/// How many slices a launch takes.
const SLICES: usize = 7;

/// Keeps an item for the device alone.
#[proc_macro_attribute]
pub fn device(
    _options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let item = TokenStream::from(item);
    quote!(#[cfg(target_os = "none")] #item).into()
}

/// Makes a function a kernel.
#[proc_macro_attribute]
pub fn kernel(
    _options: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let function = syn::parse(item).and_then(|function: ItemFn| {
        let parameters = parameters(&function)?;
        let (device, host) = (
            on_device(&function, &parameters),
            on_host(&function, &parameters),
        );
        Ok(quote!(#device #host))
    });
    function.unwrap_or_else(Error::into_compile_error).into()
}

/// The file of these macros, with which the build helper has the compiler expand them again.
#[proc_macro]
pub fn file(_: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let here = file as fn(_) -> _ as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // Such as `7f0000000000-7f0000001000 r-xp 00000000 08:01 123    /target/libNAME.so`.
    let file = maps.lines().find_map(|line| {
        let (start, rest) = line.split_once('-')?;
        let end = rest.split_once(' ')?.0;
        let number = |text| usize::from_str_radix(text, 16).ok();
        let inside = (number(start)?..number(end)?).contains(&here);
        inside.then(|| &line[line.find('/').unwrap_or(line.len())..])
    });
    let file = Literal::string(file.unwrap_or_default());
    file.into_token_stream().into()
}

enum Kind {
    Value,
    Pointer,
    /// Slices have elements of this type.
    Read(TokenStream),
    Write(TokenStream),
    /// An array of that which blocks share.
    Shared(TokenStream),
}

struct Parameter {
    name: Ident,
    ty: Type,
    kind: Kind,
}

fn parameters(function: &ItemFn) -> Result<Vec<Parameter>> {
    let signature = &function.sig;
    let refuse = |at: &dyn ToTokens, what: &str| Err(Error::new_spanned(at, what));
    if !signature.generics.params.is_empty() {
        return refuse(&signature.generics, "a kernel is not generic");
    }
    if let Some(word) = &signature.asyncness {
        return refuse(word, "a kernel is not async");
    }
    if let Some(abi) = &signature.abi {
        return refuse(abi, "a kernel has the calling convention of Rust");
    }
    if let ReturnType::Type(..) = signature.output {
        return refuse(&signature.output, "a kernel returns nothing");
    }
    let mut all = Vec::new();
    for argument in &signature.inputs {
        let FnArg::Typed(typed) = argument else {
            return refuse(argument, "a kernel is no method");
        };
        let Pat::Ident(name) = &*typed.pat else {
            return refuse(&typed.pat, "a parameter of a kernel has a name");
        };
        let kind = kind(&typed.ty)?;
        if matches!(kind, Kind::Pointer) && signature.unsafety.is_none() {
            return refuse(&typed.ty, "a kernel that takes a pointer is an `unsafe fn`");
        }
        all.push(Parameter {
            name: name.ident.clone(),
            ty: (*typed.ty).clone(),
            kind,
        });
    }
    let is_slice = |it: &&Parameter| matches!(it.kind, Kind::Read(_) | Kind::Write(_));
    if let Some(one) = all.iter().filter(is_slice).nth(SLICES) {
        return refuse(&one.ty, "a kernel takes at most 7 slices");
    }
    Ok(all)
}

fn kind(ty: &Type) -> Result<Kind> {
    let path = match ty {
        Type::Ptr(_) => return Ok(Kind::Pointer),
        Type::Reference(_) => {
            let what = "a kernel takes no references, but `DeviceSlice` and `DeviceSliceMut`";
            return Err(Error::new_spanned(ty, what));
        }
        Type::Path(path) => path,
        _ => return Ok(Kind::Value),
    };
    let last = path.path.segments.last().expect("a path has a segment");
    let mut types = Vec::new();
    if let PathArguments::AngleBracketed(arguments) = &last.arguments {
        let is_type = |it: &&GenericArgument| !matches!(it, GenericArgument::Lifetime(_));
        types.extend(
            arguments
                .args
                .iter()
                .filter(is_type)
                .map(|it| it.to_token_stream()),
        );
    }
    Ok(match (&*last.ident.to_string(), &*types) {
        ("DeviceSlice", [element]) => Kind::Read(element.clone()),
        ("DeviceSliceMut", [element]) => Kind::Write(element.clone()),
        ("Shared", [element, count]) => Kind::Shared(quote!([#element; #count])),
        ("usize" | "isize", []) => {
            return Err(Error::new_spanned(
                ty,
                "a number has the same length on both sides",
            ));
        }
        _ => Kind::Value,
    })
}

/// The name in the file for the device, such as `saxpy(f32,DeviceSlice<f32>)`. The text of a type
/// need not mean the same on both sides: see [`types`].
fn symbol(function: &ItemFn, parameters: &[Parameter]) -> String {
    let types = parameters
        .iter()
        .map(|it| it.ty.to_token_stream().to_string().replace(' ', ""));
    format!(
        "{}({})",
        function.sig.ident.unraw(),
        types.collect::<Vec<_>>().join(",")
    )
}

/// Bytes of memory that blocks share, for these parameters.
fn shared_bytes<'p>(parameters: impl Iterator<Item = &'p Parameter>) -> TokenStream {
    let arrays = parameters.filter_map(|it| match &it.kind {
        Kind::Shared(array) => Some(array),
        _ => None,
    });
    quote!(::pinmap_kernel::types::shared(&[#(::core::mem::size_of::<#arrays>()),*]))
}

/// The types in numbers: the constant that both sides have of a kernel.
fn types(function: &ItemFn, parameters: &[Parameter]) -> TokenStream {
    let is_unsafe = function.sig.unsafety.is_some();
    let shared = shared_bytes(parameters.iter());
    let types = quote!(::pinmap_kernel::types);
    let rows = parameters.iter().map(|Parameter { ty, kind, .. }| {
        let row = match kind {
            Kind::Value => quote_spanned!(ty.span()=> value::<#ty>()),
            Kind::Pointer => quote!(pointer::<#ty>()),
            Kind::Read(element) => quote_spanned!(ty.span()=> slice::<#element>(false)),
            Kind::Write(element) => quote_spanned!(ty.span()=> slice::<#element>(true)),
            Kind::Shared(array) => quote_spanned!(ty.span()=> array::<#array>()),
        };
        quote!(#types::#row)
    });
    quote!([#types::kernel(#is_unsafe, #shared), #(#rows),*])
}

/// Makes the function, and the one at which a thread begins.
fn on_device(function: &ItemFn, parameters: &[Parameter]) -> TokenStream {
    let (mut takes, mut passes) = (Vec::new(), Vec::new());
    let here = Ident::new("here", Span::mixed_site());
    for (number, Parameter { ty, kind, .. }) in parameters.iter().enumerate() {
        let local = |name: &str| Ident::new(&format!("{name}{number}"), Span::mixed_site());
        let (name, len) = (local("p"), local("len"));
        match kind {
            Kind::Value | Kind::Pointer => {
                takes.push(quote!(#name: #ty));
                passes.push(quote!(#name));
            }
            Kind::Read(element) => {
                takes.push(quote!(#name: *const #element, #len: usize));
                passes.push(quote!(::pinmap_kernel::DeviceSlice::new(&#here, #name, #len)));
            }
            Kind::Write(element) => {
                takes.push(quote!(#name: *mut #element, #len: usize));
                passes.push(quote!(::pinmap_kernel::DeviceSliceMut::new(&#here, #name, #len)));
            }
            Kind::Shared(_) => {
                let offset = shared_bytes(parameters[..number].iter());
                passes.push(quote!(::pinmap_kernel::Shared::new(&#here, const { #offset })));
            }
        }
    }
    let (name, symbol) = (&function.sig.ident, symbol(function, parameters));
    let (types, types_symbol) = (types(function, parameters), format!("types:{symbol}"));
    let (rows, entry) = (parameters.len() + 1, format_ident!("{name}_entry"));
    quote! {
        #[cfg(target_os = "none")]
        #function
        #[cfg(target_os = "none")]
        const _: () = {
            #[allow(unused_braces)]
            #[unsafe(export_name = #types_symbol)]
            static __PINMAP_TYPES: [::pinmap_kernel::types::Row; #rows] = #types;
            #[allow(unused_braces)]
            #[unsafe(export_name = #symbol)]
            extern "C" fn #entry(#(#takes),*) {
                let #here = ();
                // SAFETY: The launch passes what the parameters are, and keeps it until the end.
                #[allow(unused_unsafe)]
                unsafe { #name(#(#passes),*) }
            }
        };
    }
}

/// Makes what launches the kernel.
fn on_host(function: &ItemFn, parameters: &[Parameter]) -> TokenStream {
    let (name, vis, safety) = (&function.sig.ident, &function.vis, &function.sig.unsafety);
    let work = Ident::new("work", Span::mixed_site());
    let grid = Ident::new("grid", Span::mixed_site());
    let (mut takes, mut lends, mut adds) = (Vec::new(), Vec::new(), Vec::new());
    for Parameter { name, ty, kind } in parameters {
        match kind {
            Kind::Value => {
                takes.push(quote!(#name: #ty));
                adds.push(quote_spanned!(ty.span()=> .value(#name)));
            }
            Kind::Pointer => {
                takes.push(quote!(#name: #ty));
                adds.push(quote!(.value(#name.expose_provenance())));
            }
            Kind::Read(element) => {
                takes.push(quote!(#name: impl ::pinmap_kernel::host::Source<'w, #element>));
                lends.push(quote!(let #name = #name.lend(#work)?;));
                adds.push(quote!(.read(#name).value(#name.len())));
            }
            Kind::Write(element) => {
                let len = format_ident!("{name}_len", span = Span::mixed_site());
                takes.push(quote!(#name: impl ::pinmap_kernel::host::Destination<'w, #element>));
                lends.push(quote! {
                    let mut #name = #name.lend_mut(#work)?;
                    let #len = #name.len();
                });
                adds.push(quote!(.write(&mut #name).value(#len)));
            }
            Kind::Shared(_) => {}
        }
    }
    let docs = function.attrs.iter().filter(|it| it.path().is_ident("doc"));
    let docs: Vec<_> = docs.collect();
    let launches = format!("Launches of the kernel `{name}`.");
    let prepares = format!("Prepares launches of the kernel `{name}` with this grid.");
    let (ty, symbol) = (type_name(name), symbol(function, parameters));
    let types = types(function, parameters);
    let promise = safety.map(|_| {
        quote! {
            ///
            /// # Safety
            ///
            /// As the kernel says.
        }
    });
    let host = quote!(::pinmap_kernel::host);
    quote! {
        #[cfg(not(target_os = "none"))]
        #[doc = #launches]
        ///
        #(#docs)*
        #[derive(Debug)]
        #vis struct #ty(#host::Known<Self, #host::Launcher>);

        #[cfg(not(target_os = "none"))]
        impl Kernels {
            #[doc = #prepares]
            ///
            /// # Errors
            ///
            /// As for [`Program::kernel`](::pinmap_kernel::host::Program::kernel).
            #[allow(unused_braces)]
            #vis fn #name(
                &self,
                #grid: #host::Grid,
            ) -> ::core::result::Result<#ty, #host::ProgramError> {
                // SAFETY: The kernel has this name, and its parameters these types.
                unsafe { self.0.kernel(#symbol, #grid, &const { #types }) }.map(#ty)
            }
        }

        #[cfg(not(target_os = "none"))]
        impl #ty {
            /// Submits a launch.
            ///
            /// # Errors
            ///
            /// As for [`Work::launch`](::pinmap_kernel::host::Work::launch), and for
            /// [`Work::slice`](::pinmap_kernel::host::Work::slice).
            #promise
            #[track_caller]
            #[allow(clippy::too_many_arguments)]
            #vis #safety fn launch<'w>(
                &'w mut self,
                #work: &#host::Work<'w>,
                #(#takes),*
            ) -> #host::Result<()> {
                #(#lends)*
                let arguments = #host::Arguments::new()#(#adds)*;
                // SAFETY: The kernel has these parameters, by its name. It is safe, or the caller
                // promises what it needs.
                unsafe { self.0.launch_with(#work, arguments) }
            }
        }

        #[cfg(not(target_os = "none"))]
        impl ::core::ops::Deref for #ty {
            type Target = #host::Known<Self, #host::Launcher>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        #[cfg(not(target_os = "none"))]
        impl ::core::ops::DerefMut for #ty {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }
    }
}

/// The name of a function as one of a type: `matrix_product` is `MatrixProduct`.
fn type_name(name: &Ident) -> Ident {
    let name_text = name.unraw().to_string();
    let words = name_text.split('_').map(|word| {
        let mut rest = word.chars();
        let first = rest.next().into_iter().flat_map(char::to_uppercase);
        first.chain(rest.as_str().chars()).collect::<String>()
    });
    let words = words.collect::<String>();
    // A digit does not begin a name.
    let begins = words.starts_with(|first: char| !first.is_numeric());
    let begin = if begins { "" } else { "_" };
    Ident::new(&format!("{begin}{words}"), name.span())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_names_of_types() {
        let name = |text: &str| type_name(&syn::parse_str(text).expect("a name")).to_string();
        assert_eq!(name("matrix_product"), "MatrixProduct");
        assert_eq!(name("été_2"), "Été2");
        assert_eq!(name("r#type"), "Type");
        assert_eq!(name("_1"), "_1");
        assert_eq!(name("__"), "_");
    }
}
