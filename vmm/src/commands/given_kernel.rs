//! A kernel whose file is given by who attaches. What the file alone says is said before anybody is held: a filter that selects nothing of it, above all.

use std::cell::RefCell;
use std::path::Path;

use image::Image;
use tracer::tracing::Kernel;

use crate::failure::Failure;
use crate::loader::KernelFile;
use crate::verbs::attach::AttachOptions;

/// The file, and the image in it.
#[derive(Debug)]
pub(super) struct GivenKernel {
    file: KernelFile,
    /// Until the first kernel takes it: a later one (`--follow`) reads it anew.
    image: RefCell<Option<Image>>,
}

impl GivenKernel {
    /// Reads it, and looks whether what these options ask for is there.
    ///
    /// # Errors
    /// [`Failure`] says what is wrong with the file, or with the filter.
    pub fn read(path: &Path, options: &AttachOptions) -> Result<Self, Failure> {
        let file = KernelFile::read(path);
        let file = file.and_then(|file| file.with_symbols(options.symbols.as_deref()));
        let file = file.map_err(Failure::bad_input)?;
        let image = image_of(&file)?;
        let wanted = options.traced.to_tracing();
        wanted.check_filter(Some((&image, file.debug())))?;
        let image = RefCell::new(Some(image));
        Ok(Self { file, image })
    }

    /// The kernel as the file has it.
    ///
    /// # Errors
    /// [`Failure`] says what is wrong with the file.
    pub fn kernel(&self) -> Result<Kernel, Failure> {
        let image = self.image.take();
        Ok(Kernel {
            image: image.map_or_else(|| image_of(&self.file), Ok)?,
            debug: self.file.debug(),
            name: self.file.path().display().to_string(),
        })
    }
}

fn image_of(file: &KernelFile) -> Result<Image, Failure> {
    let image = file.image();
    image.map_err(|error| Failure::bad_input(file.refused(&error)))
}
