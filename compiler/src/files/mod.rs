//! The files in a model's folder.

#[doc(hidden)]
pub mod config;
pub mod io;
pub mod lora;
pub mod model_folder;
pub mod module_list;
pub mod other_weights;
#[doc(hidden)]
pub mod pickle;
#[doc(hidden)]
pub mod weights;
