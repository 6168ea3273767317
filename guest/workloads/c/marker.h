/* Markers: one nop of five bytes, and a note that says where the operands are, as USDT's sdt.h writes it.
 *
 * The operands are kept alive by constraint only: "somewhere", a register, a place on the stack or a
 * constant. Nothing is moved or pushed for a marker. Whoever wants the values reads the note (.note.stapsdt:
 * place, base, semaphore, provider, name, operands as "size@place", the size negative where it has a
 * sign) and puts a jump to code of its own in the place of the nop. A second note, by the owner
 * "exotrace", gives the operands names. */
#ifndef MARKER_H
#define MARKER_H

/* For %n, which prints the number with its sign turned. */
#define MARKER_SIZE(x) (((__typeof__(x))-1 < (__typeof__(x))1 ? 1 : -1) * (int)sizeof(x))

#define MARKER_NOTE(owner, type, desc)                        \
    ".pushsection .note.stapsdt, \"\", @note\n"              \
    ".balign 4\n"                                              \
    ".4byte 992f - 991f, 994f - 993f, " type "\n"              \
    "991: .asciz \"" owner "\"\n"                              \
    "992: .balign 4\n"                                         \
    "993: .8byte 990b\n" desc                                  \
    "994: .balign 4\n"                                         \
    ".popsection\n"

#define MARKER_ASM(name, operands, names)                      \
    "990: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00\n"                \
    MARKER_NOTE("stapsdt", "3", ".8byte 0, 0\n"                \
        ".asciz \"guest\"\n.asciz \"" name "\"\n"              \
        ".asciz \"" operands "\"\n")                           \
    MARKER_NOTE("exotrace", "1", ".asciz \"" names "\"\n")

/* A marker with four operands. */
#define MARKER4(name, p1, p2, p3, p4)                          \
    __asm__ volatile(MARKER_ASM(name,                          \
        "%n[s1]@%[o1] %n[s2]@%[o2] %n[s3]@%[o3] %n[s4]@%[o4]", \
        #p1 "," #p2 "," #p3 "," #p4)                           \
        : : [o1] "nor"(p1), [o2] "nor"(p2), [o3] "nor"(p3), [o4] "nor"(p4), \
            [s1] "n"(MARKER_SIZE(p1)), [s2] "n"(MARKER_SIZE(p2)), \
            [s3] "n"(MARKER_SIZE(p3)), [s4] "n"(MARKER_SIZE(p4)))

#endif
