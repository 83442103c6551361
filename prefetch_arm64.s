//go:build gc && !purego

#include "textflag.h"

// func prefetch(p, q, r unsafe.Pointer)
TEXT ·prefetch(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R0
	PRFM (R0), PSTL1KEEP
	MOVD q+8(FP), R0
	PRFM (R0), PSTL1KEEP
	MOVD r+16(FP), R0
	PRFM (R0), PSTL1KEEP
	RET
