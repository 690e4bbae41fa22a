//! Writes the JavaScript for the WebAssembly module, and a second module for hosts without relaxed instructions.
//!
//!     kivu-wasm-bindgen MODULE FOLDER

mod relaxed;

use std::{env, error::Error, fs, path::Path};

use wasm_bindgen_cli_support::Bindgen;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [module, folder] = arguments.as_slice() else {
        return Err("usage: kivu-wasm-bindgen MODULE FOLDER".into());
    };
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name("kivuml_wasm").typescript(false).omit_default_module_path(true);
    bindgen.remove_name_section(true).remove_producers_section(true);
    // An instance that panicked is replaced by another one.
    bindgen.reset_state_function(true);
    bindgen.web(true)?.generate(folder)?;
    let path = Path::new(folder).join("kivuml_wasm_bg.wasm");
    let module = relaxed::with_exact_comparisons(&fs::read(&path)?)?;
    fs::write(path.with_file_name("kivuml_wasm_baseline.wasm"), relaxed::without_relaxed(&module)?)?;
    fs::write(path, module)?;
    Ok(())
}
