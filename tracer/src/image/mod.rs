//! What a guest image says about itself: symbols, function sites, text ranges.
