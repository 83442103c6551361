//go:build gc && !purego

#include "textflag.h"

// PREFETCHW (AX), for which Go's assembler has no name. Processors that can't do it
// take it for nothing.
#define PREFETCHW BYTE $0x0F; BYTE $0x0D; BYTE $0x08

// func prefetch(p, q, r unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), AX
	PREFETCHW
	MOVQ q+8(FP), AX
	PREFETCHW
	MOVQ r+16(FP), AX
	PREFETCHW
	RET
