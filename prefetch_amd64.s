//go:build gc && !purego

#include "textflag.h"

// func prefetch(p unsafe.Pointer)
//
// PREFETCHW, for which Go's assembler has no name. Processors that can't do it
// take it for nothing.
TEXT ·prefetch(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	BYTE $0x0F; BYTE $0x0D; BYTE $0x08 // PREFETCHW (AX)
	RET
