//! Types of a few values, each with a name: what a trace, a message, a command line and a socket call it is said once,
//! beside the value and what it means.

/// A type of a few values, each with a name.
pub trait Choice: Copy + 'static {
    /// Every value.
    const ALL: &'static [Self];

    /// What this one is called.
    #[must_use]
    fn name(self) -> &'static str;

    /// What this one means, in a sentence without its full stop.
    #[must_use]
    fn about(self) -> &'static str;
}

/// Declares an enum whose values each have a line of documentation and a name: it is read and written by the name.
#[macro_export]
macro_rules! choices {
    (
        $(#[$of_type:meta])*
        pub enum $Type:ident {
            $(#[doc = $about:literal] $(#[$of_value:meta])* $Value:ident = $name:literal,)+
        }
    ) => {
        $(#[$of_type])*
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $Type {
            $(#[doc = $about] $(#[$of_value])* #[serde(rename = $name)] $Value,)+
        }

        impl $Type {
            /// What it is called.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $name,)+
                }
            }
        }

        impl $crate::choice::Choice for $Type {
            const ALL: &'static [Self] = &[$(Self::$Value,)+];

            fn name(self) -> &'static str {
                self.name()
            }

            fn about(self) -> &'static str {
                let about = match self {
                    $(Self::$Value => $about,)+
                };
                about.trim().trim_end_matches('.')
            }
        }

        impl std::fmt::Display for $Type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub use choices;

#[cfg(test)]
mod tests {
    use super::Choice;

    choices! {
        /// Where to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Side {
            /// To the left: not to the right.
            Left = "left",
            /// To the right.
            Right = "right-hand",
        }
    }

    #[test]
    fn a_value_is_read_and_written_by_its_name_and_says_what_it_means() {
        for (side, name, about) in [
            (Side::Left, "left", "To the left: not to the right"),
            (Side::Right, "right-hand", "To the right"),
        ] {
            assert_eq!((side.name(), side.about()), (name, about));
            assert_eq!(side.to_string(), name);
            let written = serde_json::to_value(side).unwrap();
            assert_eq!(written, name);
            assert_eq!(serde_json::from_value::<Side>(written).unwrap(), side);
        }
        assert_eq!(Side::ALL, [Side::Left, Side::Right]);
        let error = serde_json::from_str::<Side>("\"right\"").unwrap_err();
        assert!(
            error.to_string().contains("`left` or `right-hand`"),
            "{error}"
        );
    }
}
