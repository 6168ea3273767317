use std::io::Write;

use super::*;

/// Where [`around`] puts the payload: after five sectors and a bit.
const PAYLOAD: usize = 5 * 512 + 16;

/// A bzImage around `payload`, of the least that the boot protocol asks for.
fn around(payload: &[u8]) -> Vec<u8> {
    let mut image = vec![0; PAYLOAD - 16];
    image[BOOT_FLAG..BOOT_FLAG + 2].copy_from_slice(&[0x55, 0xaa]);
    image[JUMP_LENGTH] = 0x6a;
    image[MAGIC..VERSION].copy_from_slice(b"HdrS");
    image[VERSION..VERSION + 2].copy_from_slice(&0x20f_u16.to_le_bytes());
    image[XLOADFLAGS] = 0x7f;
    image[PAYLOAD_OFFSET..PAYLOAD_LENGTH].copy_from_slice(&16_u32.to_le_bytes());
    let length = u32::try_from(payload.len()).unwrap();
    image[PAYLOAD_LENGTH..PAYLOAD_LENGTH + 4].copy_from_slice(&length.to_le_bytes());
    image.extend([0xcc; 16]);
    image.extend(payload);
    image.extend([0xdd; 32]);
    image
}

fn kernel() -> Vec<u8> {
    (0..300_000_u32)
        .flat_map(|n| ((n / 7) ^ (n << 9)).to_le_bytes())
        .collect()
}

fn packed(compression: Compression, kernel: &[u8]) -> Vec<u8> {
    let mut packed = match compression {
        Compression::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(kernel).unwrap();
            return gzip.finish().unwrap();
        }
        Compression::Lz4 => lz4_legacy(kernel),
        Compression::Xz => {
            let options = lzma_rust2::XzOptions::with_preset(1);
            let mut xz = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
            xz.write_all(kernel).unwrap();
            xz.finish().unwrap()
        }
        Compression::Zstd => {
            use ruzstd::encoding::{CompressionLevel, compress_to_vec};
            compress_to_vec(kernel, CompressionLevel::Fastest)
        }
    };
    packed.extend(u32::try_from(kernel.len()).unwrap().to_le_bytes());
    packed
}

fn lz4_legacy(kernel: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x02, 0x21, 0x4c, 0x18];
    for block in kernel.chunks(8 << 20) {
        let block = lz4_flex::block::compress(block);
        stream.extend(u32::try_from(block.len()).unwrap().to_le_bytes());
        stream.extend(block);
    }
    stream
}

const ALL: [Compression; 4] = [
    Compression::Gzip,
    Compression::Lz4,
    Compression::Xz,
    Compression::Zstd,
];

fn unpack(image: &[u8]) -> Result<Vec<u8>, BzImageError> {
    BzImage::parse(image)?.unpack()
}

#[test]
fn each_compression_gives_the_kernel_back() {
    let kernel = kernel();
    for compression in ALL {
        let image = around(&packed(compression, &kernel));
        let parsed = BzImage::parse(&image).unwrap();
        assert_eq!(parsed.compression(), compression);
        assert!(parsed.unpack().unwrap() == kernel, "{}", compression.name());
        assert_eq!(parsed.setup_header().len(), 0x202 + 0x6a - 0x1f1);
    }
}

#[test]
fn a_kernel_larger_than_it_says_is_cut_off_one_byte_later() {
    let kernel = kernel();
    for compression in ALL {
        let mut payload = packed(compression, &kernel);
        let size = payload.len() - 4;
        payload[size..].copy_from_slice(&1000_u32.to_le_bytes());
        let expected = BzImageError::WrongSize {
            name: compression.name(),
            found: 1001,
            expected: 1000,
        };
        assert_eq!(unpack(&around(&payload)), Err(expected));
    }
}

#[test]
fn a_kernel_smaller_than_it_says_is_an_error() {
    for compression in [Compression::Lz4, Compression::Xz, Compression::Zstd] {
        let mut payload = packed(compression, &[7; 5000]);
        let size = payload.len() - 4;
        payload[size..].copy_from_slice(&6000_u32.to_le_bytes());
        let expected = BzImageError::WrongSize {
            name: compression.name(),
            found: 5000,
            expected: 6000,
        };
        assert_eq!(unpack(&around(&payload)), Err(expected));
    }
}

#[test]
fn a_stated_size_over_the_limit_is_refused_before_unpacking() {
    let mut payload = packed(Compression::Lz4, &[7; 5000]);
    let size = payload.len() - 4;
    payload[size..].copy_from_slice(&u32::MAX.to_le_bytes());
    let bytes = u64::from(u32::MAX);
    assert_eq!(
        BzImage::parse(&around(&payload)).unwrap_err(),
        BzImageError::TooLarge { bytes }
    );
}

#[test]
fn what_is_not_supported_is_named() {
    for (start, name) in [
        (&b"BZh91AY&SY"[..], "bzip2"),
        (b"\x89LZO\0\r\n\x1a", "lzo"),
        (b"\x5d\0\0\0\x04\xff\xff\xff\xff", "lzma"),
    ] {
        assert_eq!(
            unpack(&around(start)),
            Err(BzImageError::Unsupported { name })
        );
    }
    let found = b"\x7fELF\x02\x01\x01\0".to_vec();
    assert_eq!(
        unpack(&around(&found)),
        Err(BzImageError::UnknownCompression { found })
    );
}

#[test]
fn headers_that_lie_are_refused() {
    let good = around(&packed(Compression::Gzip, &[1; 100]));
    let with = |offset: usize, bytes: &[u8]| {
        let mut image = good.clone();
        image[offset..offset + bytes.len()].copy_from_slice(bytes);
        unpack(&image)
    };
    assert_eq!(with(MAGIC, b"hdrs"), Err(BzImageError::NotBzImage));
    assert_eq!(
        with(BOOT_FLAG, &[0, 0]),
        Err(BzImageError::BootFlag { found: 0 })
    );
    assert_eq!(
        with(VERSION, &[0x0b, 2]),
        Err(BzImageError::TooOld { version: 0x20b })
    );
    assert_eq!(with(XLOADFLAGS, &[0x7e]), Err(BzImageError::Not64Bit));
    for (offset, bytes) in [
        (PAYLOAD_OFFSET, &u32::MAX.to_le_bytes()[..]),
        (PAYLOAD_LENGTH, &u32::MAX.to_le_bytes()[..]),
        (PAYLOAD_LENGTH, &4_u32.to_le_bytes()[..]),
        (SETUP_SECTS, &[0xff][..]),
    ] {
        let refused = with(offset, bytes);
        assert!(
            matches!(refused, Err(BzImageError::PayloadOutside { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn a_file_that_ends_anywhere_is_an_error() {
    for compression in ALL {
        let good = around(&packed(compression, &[1; 3000]));
        let end = good.len() - 32;
        for length in (0..end).step_by(7) {
            unpack(&good[..length]).unwrap_err();
        }
        unpack(&good[..end]).unwrap();
    }
}

/// A byte changed, every so far: an error, or the kernel with what the damage did to it, never a
/// panic.
#[test]
fn damage_anywhere_is_an_error_or_goes_by() {
    for compression in ALL {
        let good = around(&packed(compression, &kernel()[..3000]));
        let header = (SETUP_SECTS..PAYLOAD_LENGTH + 4).step_by(3);
        for index in header.chain((PAYLOAD..good.len()).step_by(29)) {
            let mut image = good.clone();
            image[index] ^= 1 << (index % 8);
            if let Ok(kernel) = unpack(&image) {
                assert_eq!(kernel.len(), 3000, "{} byte {index}", compression.name());
            }
        }
    }
}
